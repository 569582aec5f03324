// Package plugins are the admission plugins of kube-apiserver, in its order, as admission.Plugins. What they read of other objects
// they read at the head of the store.
package plugins

import (
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiserverv1alpha1 "k8s.io/apiserver/pkg/apis/apiserver/v1alpha1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/internal/admission"
)

// Config is which plugins there are, and what they are given.
type Config struct {
	Enable, Disable []string // names, besides those that are on by default
	NodeAuthorizer  bool     // whether the Node authorizer is configured; NodeRestriction is then on by default
	File            string   // an AdmissionConfiguration of apiserver.config.k8s.io; "": none
	Informers       Informers
	Client          kubernetes.Interface
	Authorizer      authorizer.Authorizer
	Mapper          meta.RESTMapper
	Quotas          *Quotas
	Stop            <-chan struct{}    // closed when the server ends
	Own             []admission.Plugin // those of the server's own; each takes the place that its name has
}

// Names are those of the plugins that there are, and of those that are on by default.
func Names() (all, on []string) {
	for _, e := range table {
		all = append(all, e.name)
		if e.on {
			on = append(on, e.name)
		}
	}
	return all, on
}

// Check refuses a name that no plugin has, and one that is to be on and off.
func (c *Config) Check() error {
	all, _ := Names()
	for _, name := range c.Enable {
		if !slices.Contains(all, name) {
			return fmt.Errorf("enable-admission-plugins plugin %q is unknown", name)
		}
		if slices.Contains(c.Disable, name) {
			return fmt.Errorf("enable-admission-plugins, disable-admission-plugins: %s is in both", name)
		}
	}
	for _, name := range c.Disable {
		if name == (admission.Lifecycle{}).Name() {
			return fmt.Errorf("disable-admission-plugins: %s is always on", name)
		}
		if !slices.Contains(all, name) {
			return fmt.Errorf("disable-admission-plugins plugin %q is unknown", name)
		}
	}
	return nil
}

// enabled are the entries of the table that are on.
func (c *Config) enabled() (on []*entry, names []string) {
	for i := range table {
		e := &table[i]
		byDefault := e.on || e.name == NodeRestriction && c.NodeAuthorizer
		if (byDefault || slices.Contains(c.Enable, e.name)) && !slices.Contains(c.Disable, e.name) {
			on, names = append(on, e), append(names, e.name)
		}
	}
	return on, names
}

// Open returns the plugins that are on.
func Open(c Config) (all admission.Plugins, err error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	on, names := c.enabled()
	files, err := upstream.ReadAdmissionConfiguration(names, c.File, configScheme())
	if err != nil {
		return nil, fmt.Errorf("admission-control-config-file: %w", err)
	}
	registry := upstream.NewPlugins()
	counts, err := newCounting(c.Informers)
	if err != nil {
		return nil, fmt.Errorf("what ResourceQuotas count: %w", err)
	}
	give := upstream.PluginInitializers{
		initializer.New(c.Client, nil, c.Informers, c.Authorizer, utilfeature.DefaultFeatureGate, compatibility.DefaultBuildEffectiveVersion(), c.Stop, c.Mapper),
		counts, // once it knows when to stop
	}
	for _, e := range on {
		file, err := files.ConfigFor(e.name)
		switch {
		case err != nil:
			return nil, fmt.Errorf("admission plugin %s: %w", e.name, err)
		case e.register == nil:
			p, err := c.own(e.name, file)
			if err != nil {
				return nil, err
			}
			all = append(all, p...)
			continue
		}
		e.register(registry)
		p, err := registry.InitPlugin(e.name, file, give)
		if err != nil {
			return nil, err
		}
		all = append(all, c.wrap(e, p))
	}
	return all, nil
}

// own returns the server's own plugin of a name, if there is one, with the settings in a file; nil: no settings.
func (c *Config) own(name string, file io.Reader) (one []admission.Plugin, err error) {
	for _, p := range c.Own {
		if p.Name() == name {
			one = append(one, p)
		}
	}
	if file == nil {
		return one, nil
	}
	configured := false
	for _, p := range one {
		if p, ok := p.(interface{ Configure(file io.Reader) error }); ok {
			if err := p.Configure(file); err != nil {
				return nil, fmt.Errorf("couldn't init admission plugin %q: %w", name, err)
			}
			configured = true
		}
	}
	if !configured {
		return nil, fmt.Errorf("admission-control-config-file: %s has no settings here", name)
	}
	return one, nil
}

func (c *Config) wrap(e *entry, p upstream.Interface) admission.Plugin {
	switch e.name {
	case resourcequota.PluginName:
		return limits{newPlugin(e, p), c.Quotas, newBounds(c.Informers.Head)}
	case NodeRestriction:
		return restriction{newPlugin(e, p)}
	}
	return newPlugin(e, p)
}

// configScheme is what the file of an AdmissionConfiguration is read by.
func configScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apiserver.AddToScheme, apiserverv1.AddToScheme, apiserverv1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // the types are upstream's
		}
	}
	return s
}
