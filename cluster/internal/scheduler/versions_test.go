package scheduler

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
)

// decodeConfiguration decodes a configuration as the scheduler does, and also returns the warnings.
func decodeConfiguration(
	t *testing.T, version, text string,
) (c *config.KubeSchedulerConfiguration, warnings []string, err error) {
	t.Helper()
	s := runtime.NewScheme()
	scheme.AddToScheme(s)
	addRemovedVersions(s, func(message string) { warnings = append(warnings, message) })
	text = "apiVersion: kubescheduler.config.k8s.io/" + version + "\nkind: KubeSchedulerConfiguration\n" + text
	decoder := serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDecoder()
	o, gvk, err := decoder.Decode([]byte(text), nil, nil)
	if err != nil {
		return nil, warnings, err
	}
	if gvk.Version != version {
		t.Errorf("decoded as %s, want version %s", gvk, version)
	}
	return o.(*config.KubeSchedulerConfiguration), warnings, nil
}

// TestRemovedVersions checks that configurations of v1beta2 and v1beta3 have the effect of an equivalent one of v1, and
// that warnings explain how to write them in v1. SCD-014
func TestRemovedVersions(t *testing.T) {
	const weights = "multiPoint: {enabled: [{name: InterPodAffinity, weight: 1}, {name: NodeAffinity, weight: 1}, " +
		"{name: TaintToleration, weight: 1}]}"
	for _, c := range []struct {
		name, version string
		old, now      string
		warnings      []string // starts of the expected warnings, except the warning about the version
	}{
		{"empty, v1beta3", "v1beta3", "", "", nil},
		{"profiles, v1beta3", "v1beta3",
			"profiles: [{schedulerName: a, plugins: {multiPoint: {enabled: [{name: NodeAffinity, weight: 7}]}}}]",
			"profiles: [{schedulerName: a, plugins: {multiPoint: {enabled: [{name: NodeAffinity, weight: 7}]}}}]", nil},
		{"arguments of the same version", "v1beta3",
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {apiVersion: " +
				"kubescheduler.config.k8s.io/v1beta3, kind: NodeResourcesFitArgs, scoringStrategy: {type: " +
				"MostAllocated}}}]}]",
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}]}]",
			nil},
		{"arguments without a version", "v1beta2",
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: [example.com/a]}}]}]",
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: [example.com/a]}}], " +
				"plugins: {" + weights + "}}]",
			[]string{"profiles[0].plugins.multiPoint.enabled: the plugins InterPodAffinity, NodeAffinity, " +
				"TaintToleration have weight 1"}},
		{"weights", "v1beta2", "profiles: [{plugins: {score: {enabled: [{name: NodeAffinity, weight: 9}]}}}]",
			"profiles: [{plugins: {score: {enabled: [{name: NodeAffinity, weight: 9}]}, " + weights + "}}]",
			[]string{"profiles[0].plugins.multiPoint.enabled: "}},
		{"removed plugins", "v1beta3",
			"profiles: [{plugins: {score: {enabled: [{name: SelectorSpread}, {name: NodeAffinity}]}, filter: " +
				"{enabled: [{name: EBSLimits}]}}, pluginConfig: [{name: NodePreferAvoidPods}]}]",
			"profiles: [{plugins: {score: {enabled: [{name: NodeAffinity}]}, filter: {enabled: []}}, " +
				"pluginConfig: []}]",
			[]string{"profiles[0].pluginConfig: the plugin NodePreferAvoidPods has been removed",
				"profiles[0].plugins.filter.enabled: the plugin EBSLimits has been removed",
				"profiles[0].plugins.score.enabled: the plugin SelectorSpread has been removed: " +
					"delete it from this list. PodTopologySpread"}},
		{"addresses", "v1beta2",
			"healthzBindAddress: 0.0.0.0:0\nprofiles: [{plugins: {multiPoint: {disabled: [{name: '*'}]}}}]",
			"profiles: [{plugins: {multiPoint: {disabled: [{name: '*'}]}}}]",
			[]string{"healthzBindAddress is ignored"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, warnings, err := decodeConfiguration(t, c.version, c.old)
			if err != nil {
				t.Fatal(err)
			}
			now, none, err := decodeConfiguration(t, "v1", c.now)
			if err != nil || len(none) > 0 {
				t.Fatal(err, none)
			}
			if diff := cmp.Diff(now, old); diff != "" {
				t.Error(diff)
			}
			prefix := "kubescheduler.config.k8s.io/" + c.version + " KubeSchedulerConfiguration has been removed"
			i := slices.IndexFunc(warnings, func(w string) bool {
				return strings.HasPrefix(w, prefix) && strings.HasSuffix(w, configv1.SchemeGroupVersion.String())
			})
			if i < 0 {
				t.Fatalf("no warning about the version in %q", warnings)
			}
			warnings = slices.Delete(warnings, i, i+1)
			slices.Sort(warnings)
			if !slices.EqualFunc(warnings, c.warnings, strings.HasPrefix) {
				t.Errorf("got warnings %q, want %q", warnings, c.warnings)
			}
		})
	}
}
