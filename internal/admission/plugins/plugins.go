// Package plugins adapts the admission plugins of kube-apiserver to admission.Plugin, in kube-apiserver's order. They
// read other objects from the latest state of the store.
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

// Config specifies which plugins are enabled, and their dependencies.
type Config struct {
	Options
	NodeAuthorizer bool // the Node authorizer is configured, so NodeRestriction is enabled by default
	Informers      Informers
	Client         kubernetes.Interface
	Authorizer     authorizer.Authorizer
	Mapper         meta.RESTMapper
	Quotas         *Quotas
	Stop           <-chan struct{} // closed when the server stops
	// ServerPlugins are the plugins that this server implements itself. The order of plugins is that of their names
	// in the table.
	ServerPlugins []admission.Plugin
}

// Names returns the names of all plugins, and of the plugins that are enabled by default.
func Names() (all, on []string) {
	for _, e := range table {
		all = append(all, e.name)
		if e.onByDefault {
			on = append(on, e.name)
		}
	}
	return all, on
}

// enabled returns the enabled entries of the table and their names.
func (c *Config) enabled() (on []*entry, names []string) {
	for i := range table {
		e := &table[i]
		byDefault := e.onByDefault || e.name == NodeRestriction && c.NodeAuthorizer
		if (byDefault || slices.Contains(c.Enable, e.name)) && !slices.Contains(c.Disable, e.name) {
			on, names = append(on, e), append(names, e.name)
		}
	}
	return on, names
}

// Open returns the enabled plugins.
func Open(c Config) (all admission.Plugins, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	on, names := c.enabled()
	files, err := upstream.ReadAdmissionConfiguration(names, c.ConfigFile, configScheme())
	if err != nil {
		return nil, fmt.Errorf("admission-control-config-file: %w", err)
	}
	registry := upstream.NewPlugins()
	quotas, err := newQuotaConfiguration(c.Informers)
	if err != nil {
		return nil, fmt.Errorf("configure ResourceQuota: %w", err)
	}
	initializers := upstream.PluginInitializers{
		initializer.New(c.Client, nil, c.Informers, c.Authorizer, utilfeature.DefaultFeatureGate,
			compatibility.DefaultBuildEffectiveVersion(), c.Stop, c.Mapper),
		quotas, // last, because it needs Stop, which the first initializer sets
	}
	for _, e := range on {
		file, err := files.ConfigFor(e.name)
		switch {
		case err != nil:
			return nil, fmt.Errorf("admission plugin %s: %w", e.name, err)
		case e.register == nil:
			p, err := c.serverPlugins(e.name, file)
			if err != nil {
				return nil, err
			}
			all = append(all, p...)
			continue
		}
		e.register(registry)
		p, err := registry.InitPlugin(e.name, file, initializers)
		if err != nil {
			return nil, err
		}
		all = append(all, c.wrap(e, p))
	}
	return all, nil
}

// serverPlugins returns the plugins in ServerPlugins with the given name, configured with the file. A nil file means no
// configuration.
func (c *Config) serverPlugins(name string, file io.Reader) (plugins []admission.Plugin, err error) {
	for _, p := range c.ServerPlugins {
		if p.Name() == name {
			plugins = append(plugins, p)
		}
	}
	if file == nil {
		return plugins, nil
	}
	configured := false
	for _, p := range plugins {
		if p, ok := p.(interface{ Configure(file io.Reader) error }); ok {
			if err := p.Configure(file); err != nil {
				return nil, fmt.Errorf("couldn't init admission plugin %q: %w", name, err)
			}
			configured = true
		}
	}
	if !configured {
		return nil, fmt.Errorf("admission-control-config-file: plugin %s accepts no configuration", name)
	}
	return plugins, nil
}

func (c *Config) wrap(e *entry, p upstream.Interface) admission.Plugin {
	switch e.name {
	case resourcequota.PluginName:
		return quotaPlugin{newPlugin(e, p), c.Quotas, newQuotaIndex(c.Informers.Head)}
	case NodeRestriction:
		return nodeRestriction{newPlugin(e, p)}
	}
	return newPlugin(e, p)
}

// configScheme returns the scheme that decodes an AdmissionConfiguration.
func configScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apiserver.AddToScheme, apiserverv1.AddToScheme,
		apiserverv1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // the types are upstream's
		}
	}
	return s
}
