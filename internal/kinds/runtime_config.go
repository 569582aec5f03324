package kinds

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	crdinstall "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/resourceconfig"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// ParseRuntimeConfig says which resources are served, by what --runtime-config says (apps/v1=false, batch/v1/jobs=false, api/beta=false):
// upstream's rule, its words. What is stored stays.
func ParseRuntimeConfig(says map[string]string) (func(schema.GroupVersionResource) bool, error) {
	if len(says) == 0 {
		return nil, nil
	}
	crds := runtime.NewScheme()
	crdinstall.Install(crds)
	groups := []*runtime.Scheme{legacyscheme.Scheme, crds}
	says, err := normalizeRuntimeConfig(says, groups)
	if err != nil {
		return nil, err
	}
	config := serverstorage.NewResourceConfig()
	for _, d := range Definitions(Config{}) {
		for _, v := range d.Versions {
			config.EnableVersions(v.GroupVersion)
		}
	}
	here := maps.Clone(config.GroupVersionConfigs)
	for _, scheme := range groups {
		if config, err = resourceconfig.MergeAPIResourceConfigs(config, says, scheme); err != nil {
			return nil, err
		}
		maps.DeleteFunc(says, func(key, _ string) bool { return strings.HasPrefix(key, "api/") }) // they come before all others
	}
	for gv, on := range config.GroupVersionConfigs {
		if on && !here[gv] {
			return nil, fmt.Errorf("group version %s is not served by this server", gv)
		}
	}
	if !config.ResourceEnabled(corev1.SchemeGroupVersion.WithResource("namespaces")) {
		return nil, errors.New("the core group v1 cannot be switched off")
	}
	return config.ResourceEnabled, nil
}

// normalizeRuntimeConfig is what is said without the old names of the core group, if all groups are known.
func normalizeRuntimeConfig(says map[string]string, groups []*runtime.Scheme) (map[string]string, error) {
	out := map[string]string{}
	for key, value := range says {
		if version, _, _ := strings.Cut(strings.TrimPrefix(key, "api/"), "/"); version == "v1" {
			key = "/v1"
		}
		if key != "api/legacy" {
			out[key] = value
		}
	}
	if len(out) == 1 && out[resourceconfig.APIAll] == "false" {
		return nil, fmt.Errorf("invalid runtime-config with only %s=false", resourceconfig.APIAll)
	}
	named, err := resourceconfig.ParseGroupVersions(out)
	if err != nil {
		return nil, err
	}
	var unknown []string
	for _, gv := range named {
		if !slices.ContainsFunc(groups, func(s *runtime.Scheme) bool { return s.IsGroupRegistered(gv.Group) }) {
			unknown = append(unknown, gv.String())
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, fmt.Errorf("unknown api groups %s", strings.Join(slices.Compact(unknown), ","))
	}
	return out, nil
}
