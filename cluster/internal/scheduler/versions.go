package scheduler

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/utils/ptr"
)

const kind = "KubeSchedulerConfiguration"

var (
	v1beta2 = schema.GroupVersion{Group: configv1.GroupName, Version: "v1beta2"}
	v1beta3 = schema.GroupVersion{Group: configv1.GroupName, Version: "v1beta3"}
)

// v1beta3Configuration is a configuration of version v1beta3. It has the fields of v1.
type v1beta3Configuration struct {
	configv1.KubeSchedulerConfiguration
}

// v1beta2Configuration is a configuration of version v1beta2.
type v1beta2Configuration struct {
	configv1.KubeSchedulerConfiguration
	HealthzBindAddress *string `json:"healthzBindAddress,omitempty"`
	MetricsBindAddress *string `json:"metricsBindAddress,omitempty"`
}

func (c *v1beta2Configuration) DeepCopyObject() runtime.Object {
	next := *c
	c.KubeSchedulerConfiguration.DeepCopyInto(&next.KubeSchedulerConfiguration)
	return &next
}

func (c *v1beta3Configuration) DeepCopyObject() runtime.Object {
	next := *c
	c.KubeSchedulerConfiguration.DeepCopyInto(&next.KubeSchedulerConfiguration)
	return &next
}

// removedPlugins contains the plugins that are missing in v1. Each value explains the replacement.
var removedPlugins = map[string]string{
	"SelectorSpread":      "PodTopologySpread spreads Pods instead and is enabled by default",
	"NodePreferAvoidPods": "Use taints to keep Pods away from nodes",
	"AzureDiskLimits":     "NodeVolumeLimits limits these volumes instead",
	"CinderLimits":        "NodeVolumeLimits limits these volumes instead",
	"EBSLimits":           "NodeVolumeLimits limits these volumes instead",
	"GCEPDLimits":         "NodeVolumeLimits limits these volumes instead",
}

// reweightedPlugins are the plugins whose default weight is 1 in v1beta2 and larger in v1.
var reweightedPlugins = []string{names.InterPodAffinity, names.NodeAffinity, names.TaintToleration}

// addRemovedVersions adds the versions v1beta2 and v1beta3 of the configuration to the scheme. The conversion
// preserves their meaning. It calls the function warn for each change that the user has to make for v1.
func addRemovedVersions(s *runtime.Scheme, warn func(string)) {
	s.AddKnownTypeWithName(v1beta2.WithKind(kind), &v1beta2Configuration{})
	s.AddKnownTypeWithName(v1beta3.WithKind(kind), &v1beta3Configuration{})
	for name, args := range s.KnownTypes(configv1.SchemeGroupVersion) {
		if strings.HasSuffix(name, "Args") { // arguments of a plugin, which may specify an apiVersion
			object := reflect.New(args).Interface().(runtime.Object)
			s.AddKnownTypeWithName(v1beta2.WithKind(name), object)
			s.AddKnownTypeWithName(v1beta3.WithKind(name), object)
		}
	}
	upgrade := func(
		old schema.GroupVersion, in *configv1.KubeSchedulerConfiguration, out *config.KubeSchedulerConfiguration,
	) error {
		warn(fmt.Sprintf("%s %s has been removed from kube-scheduler: write apiVersion: %s",
			old, kind, configv1.SchemeGroupVersion))
		for i := range in.Profiles {
			path := field.NewPath("profiles").Index(i)
			dropRemovedPlugins(&in.Profiles[i], path, warn)
			if old == v1beta2 {
				keepDefaultWeights(&in.Profiles[i], path, warn)
			}
		}
		s.Default(in)
		return s.Convert(in, out, nil)
	}
	fromV1beta2 := func(a, b any, _ conversion.Scope) error {
		in := a.(*v1beta2Configuration)
		if err := checkAddresses(in, warn); err != nil {
			return err
		}
		return upgrade(v1beta2, &in.KubeSchedulerConfiguration, b.(*config.KubeSchedulerConfiguration))
	}
	fromV1beta3 := func(a, b any, _ conversion.Scope) error {
		in := a.(*v1beta3Configuration)
		return upgrade(v1beta3, &in.KubeSchedulerConfiguration, b.(*config.KubeSchedulerConfiguration))
	}
	internal := (*config.KubeSchedulerConfiguration)(nil)
	utilruntime.Must(s.AddConversionFunc((*v1beta2Configuration)(nil), internal, fromV1beta2))
	utilruntime.Must(s.AddConversionFunc((*v1beta3Configuration)(nil), internal, fromV1beta3))
}

// checkAddresses rejects addresses of ports without TLS, as v1beta2 did. v1 does not have these fields.
func checkAddresses(c *v1beta2Configuration, warn func(string)) error {
	for name, address := range map[string]*string{
		"healthzBindAddress": c.HealthzBindAddress, "metricsBindAddress": c.MetricsBindAddress,
	} {
		if address == nil {
			continue
		}
		if *address != "" && *address != "0" && !strings.HasSuffix(*address, ":0") {
			return field.Invalid(field.NewPath(name), *address, "must be empty or with an explicit 0 port")
		}
		warn(name + " is ignored: remove it. " +
			"The flags --secure-port and --bind-address set the address for health and metrics")
	}
	return nil
}

// dropRemovedPlugins removes the plugins that are missing in v1 from a profile.
func dropRemovedPlugins(p *configv1.KubeSchedulerProfile, path *field.Path, warn func(string)) {
	drop := func(path *field.Path, name string) bool {
		replacement, ok := removedPlugins[name]
		if ok {
			warn(fmt.Sprintf(
				"%s: the plugin %s has been removed: delete it from this list. %s", path, name, replacement))
		}
		return ok
	}
	if p.Plugins != nil {
		points := reflect.ValueOf(p.Plugins).Elem()
		for i := range points.NumField() {
			point := points.Field(i).Addr().Interface().(*configv1.PluginSet)
			name, _, _ := strings.Cut(points.Type().Field(i).Tag.Get("json"), ",")
			enabled := path.Child("plugins", name, "enabled")
			point.Enabled = slices.DeleteFunc(point.Enabled, func(p configv1.Plugin) bool {
				return drop(enabled, p.Name)
			})
		}
	}
	p.PluginConfig = slices.DeleteFunc(p.PluginConfig, func(c configv1.PluginConfig) bool {
		return drop(path.Child("pluginConfig"), c.Name)
	})
}

// keepDefaultWeights sets the weights of plugins to their defaults of v1beta2. It does not change plugins that the
// profile enables or disables.
func keepDefaultWeights(p *configv1.KubeSchedulerProfile, path *field.Path, warn func(string)) {
	if p.Plugins == nil {
		p.Plugins = &configv1.Plugins{}
	}
	all := &p.Plugins.MultiPoint
	var changed []string
	for _, name := range reweightedPlugins {
		enables := func(p configv1.Plugin) bool { return p.Name == name }
		disables := func(p configv1.Plugin) bool { return p.Name == name || p.Name == "*" }
		if !slices.ContainsFunc(all.Enabled, enables) && !slices.ContainsFunc(all.Disabled, disables) {
			all.Enabled = append(all.Enabled, configv1.Plugin{Name: name, Weight: ptr.To[int32](1)})
			changed = append(changed, name)
		}
	}
	if len(changed) > 0 {
		warn(fmt.Sprintf("%s: the plugins %s have weight 1, as in %s: "+
			"add them to this list with weight 1, or use the larger weights of v1",
			path.Child("plugins", "multiPoint", "enabled"), strings.Join(changed, ", "), v1beta2))
	}
}
