package kinds

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/resourceconfig"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/trellis-k8s/trellis/internal/kinds/crd"
)

// ParseRuntimeConfig parses the settings of --runtime-config, such as apps/v1=false, batch/v1/jobs=false and
// api/beta=false. It returns a function that reports whether a resource is served, or nil if all resources are
// served. Rules and error messages equal upstream's. Objects of a disabled resource remain stored.
func ParseRuntimeConfig(settings map[string]string) (func(schema.GroupVersionResource) bool, error) {
	if len(settings) == 0 {
		return nil, nil
	}
	groups := []*runtime.Scheme{legacyscheme.Scheme, crd.Scheme()}
	settings, err := normalizeRuntimeConfig(settings, groups)
	if err != nil {
		return nil, err
	}
	config := serverstorage.NewResourceConfig()
	for _, d := range Definitions(Config{}) {
		for _, v := range d.Versions {
			config.EnableVersions(v.GroupVersion)
		}
	}
	known := maps.Clone(config.GroupVersionConfigs)
	for _, scheme := range groups {
		if config, err = resourceconfig.MergeAPIResourceConfigs(config, settings, scheme); err != nil {
			return nil, err
		}
		// The first merge has applied the settings that start with "api/". If the next merge applied them again, they
		// would override more specific settings.
		maps.DeleteFunc(settings, func(key, _ string) bool { return strings.HasPrefix(key, "api/") })
	}
	for gv, on := range config.GroupVersionConfigs {
		if on && !known[gv] {
			return nil, fmt.Errorf("group version %s is not served by this server", gv)
		}
	}
	if !config.ResourceEnabled(corev1.SchemeGroupVersion.WithResource("namespaces")) {
		return nil, errors.New("the core group v1 cannot be disabled")
	}
	return config.ResourceEnabled, nil
}

// normalizeRuntimeConfig returns the settings with /v1 in place of the old names of the core group. It fails if a group
// is unknown.
func normalizeRuntimeConfig(settings map[string]string, groups []*runtime.Scheme) (map[string]string, error) {
	out := map[string]string{}
	for key, value := range settings {
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
