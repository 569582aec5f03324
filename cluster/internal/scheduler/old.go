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

// configuration3 is one of v1beta3, whose fields are v1's.
type configuration3 struct {
	configv1.KubeSchedulerConfiguration
}

// configuration2 is one of v1beta2.
type configuration2 struct {
	configv1.KubeSchedulerConfiguration
	HealthzBindAddress *string `json:"healthzBindAddress,omitempty"`
	MetricsBindAddress *string `json:"metricsBindAddress,omitempty"`
}

func (c *configuration2) DeepCopyObject() runtime.Object {
	next := *c
	c.KubeSchedulerConfiguration.DeepCopyInto(&next.KubeSchedulerConfiguration)
	return &next
}

func (c *configuration3) DeepCopyObject() runtime.Object {
	next := *c
	c.KubeSchedulerConfiguration.DeepCopyInto(&next.KubeSchedulerConfiguration)
	return &next
}

// removed are plugins that v1 no longer has, with what does their work.
var removed = map[string]string{
	"SelectorSpread":      "PodTopologySpread, which is on by default, spreads Pods",
	"NodePreferAvoidPods": "taints keep Pods away from nodes",
	"AzureDiskLimits":     "NodeVolumeLimits counts these volumes",
	"CinderLimits":        "NodeVolumeLimits counts these volumes",
	"EBSLimits":           "NodeVolumeLimits counts these volumes",
	"GCEPDLimits":         "NodeVolumeLimits counts these volumes",
}

// lighter are the plugins that score for more in v1 by default than they did in v1beta2.
var lighter = []string{names.InterPodAffinity, names.NodeAffinity, names.TaintToleration}

// acceptOld has a scheme read configurations of v1beta2 and v1beta3 as v1 that does the same. What somebody has to write in v1,
// warn is told.
func acceptOld(s *runtime.Scheme, warn func(string)) {
	s.AddKnownTypeWithName(v1beta2.WithKind(kind), &configuration2{})
	s.AddKnownTypeWithName(v1beta3.WithKind(kind), &configuration3{})
	for name, args := range s.KnownTypes(configv1.SchemeGroupVersion) {
		if strings.HasSuffix(name, "Args") { // of a plugin, which may say a version of their own
			object := reflect.New(args).Interface().(runtime.Object)
			s.AddKnownTypeWithName(v1beta2.WithKind(name), object)
			s.AddKnownTypeWithName(v1beta3.WithKind(name), object)
		}
	}
	upgrade := func(old schema.GroupVersion, in *configv1.KubeSchedulerConfiguration, out *config.KubeSchedulerConfiguration) error {
		warn(fmt.Sprintf("%s %s is no longer a version of kube-scheduler's: write apiVersion: %s", old, kind, configv1.SchemeGroupVersion))
		for i := range in.Profiles {
			path := field.NewPath("profiles").Index(i)
			dropRemoved(&in.Profiles[i], path, warn)
			if old == v1beta2 {
				keepWeights(&in.Profiles[i], path, warn)
			}
		}
		s.Default(in)
		return s.Convert(in, out, nil)
	}
	utilruntime.Must(s.AddConversionFunc((*configuration2)(nil), (*config.KubeSchedulerConfiguration)(nil), func(a, b any, _ conversion.Scope) error {
		in := a.(*configuration2)
		if err := noAddresses(in, warn); err != nil {
			return err
		}
		return upgrade(v1beta2, &in.KubeSchedulerConfiguration, b.(*config.KubeSchedulerConfiguration))
	}))
	utilruntime.Must(s.AddConversionFunc((*configuration3)(nil), (*config.KubeSchedulerConfiguration)(nil), func(a, b any, _ conversion.Scope) error {
		return upgrade(v1beta3, &a.(*configuration3).KubeSchedulerConfiguration, b.(*config.KubeSchedulerConfiguration))
	}))
}

// noAddresses refuses addresses of ports without TLS, as v1beta2 did. They are gone from v1.
func noAddresses(c *configuration2, warn func(string)) error {
	for name, address := range map[string]*string{"healthzBindAddress": c.HealthzBindAddress, "metricsBindAddress": c.MetricsBindAddress} {
		if address == nil {
			continue
		}
		if *address != "" && *address != "0" && !strings.HasSuffix(*address, ":0") {
			return field.Invalid(field.NewPath(name), *address, "must be empty or with an explicit 0 port")
		}
		warn(name + " is ignored: leave it out; --secure-port and --bind-address say where health and metrics are served")
	}
	return nil
}

// dropRemoved leaves out plugins that v1 does not have.
func dropRemoved(p *configv1.KubeSchedulerProfile, path *field.Path, warn func(string)) {
	drop := func(path *field.Path, name string) bool {
		instead, is := removed[name]
		if is {
			warn(fmt.Sprintf("%s: there is no plugin %s any more: leave it out; %s", path, name, instead))
		}
		return is
	}
	if p.Plugins != nil {
		points := reflect.ValueOf(p.Plugins).Elem()
		for i := range points.NumField() {
			point := points.Field(i).Addr().Interface().(*configv1.PluginSet)
			name, _, _ := strings.Cut(points.Type().Field(i).Tag.Get("json"), ",")
			enabled := path.Child("plugins", name, "enabled")
			point.Enabled = slices.DeleteFunc(point.Enabled, func(p configv1.Plugin) bool { return drop(enabled, p.Name) })
		}
	}
	p.PluginConfig = slices.DeleteFunc(p.PluginConfig, func(c configv1.PluginConfig) bool { return drop(path.Child("pluginConfig"), c.Name) })
}

// keepWeights has plugins score for as much as they did by default in v1beta2, unless the profile gives them a weight.
func keepWeights(p *configv1.KubeSchedulerProfile, path *field.Path, warn func(string)) {
	if p.Plugins == nil {
		p.Plugins = &configv1.Plugins{}
	}
	all := &p.Plugins.MultiPoint
	var kept []string
	for _, name := range lighter {
		named := func(p configv1.Plugin) bool { return p.Name == name }
		if !slices.ContainsFunc(all.Enabled, named) && !slices.ContainsFunc(all.Disabled, func(p configv1.Plugin) bool { return p.Name == name || p.Name == "*" }) {
			all.Enabled = append(all.Enabled, configv1.Plugin{Name: name, Weight: ptr.To[int32](1)})
			kept = append(kept, name)
		}
	}
	if len(kept) > 0 {
		warn(fmt.Sprintf("%s: %s score with weight 1, as in %s: name them there with it, or leave them to their weights in v1, which are larger",
			path.Child("plugins", "multiPoint", "enabled"), strings.Join(kept, ", "), v1beta2))
	}
}
