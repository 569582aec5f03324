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

// read is a configuration as the scheduler sees it, with what was warned of.
func read(t *testing.T, version, text string) (c *config.KubeSchedulerConfiguration, warned []string, err error) {
	t.Helper()
	s := runtime.NewScheme()
	scheme.AddToScheme(s)
	acceptOld(s, func(what string) { warned = append(warned, what) })
	text = "apiVersion: kubescheduler.config.k8s.io/" + version + "\nkind: KubeSchedulerConfiguration\n" + text
	o, gvk, err := serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDecoder().Decode([]byte(text), nil, nil)
	if err != nil {
		return nil, warned, err
	}
	if gvk.Version != version {
		t.Errorf("read as %s", gvk)
	}
	return o.(*config.KubeSchedulerConfiguration), warned, nil
}

// SCD-014: what is written in v1beta2 or v1beta3 is what is written in v1 thus, of which somebody is told.
func TestOldVersions(t *testing.T) {
	const weights = "multiPoint: {enabled: [{name: InterPodAffinity, weight: 1}, {name: NodeAffinity, weight: 1}, {name: TaintToleration, weight: 1}]}"
	for _, c := range []struct {
		name, version string
		old, now      string
		warned        []string // beside that of the version, the start of each
	}{
		{"nothing, v1beta3", "v1beta3", "", "", nil},
		{"profiles, v1beta3", "v1beta3", "profiles: [{schedulerName: a, plugins: {multiPoint: {enabled: [{name: NodeAffinity, weight: 7}]}}}]",
			"profiles: [{schedulerName: a, plugins: {multiPoint: {enabled: [{name: NodeAffinity, weight: 7}]}}}]", nil},
		{"arguments of the same version", "v1beta3",
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {apiVersion: kubescheduler.config.k8s.io/v1beta3, kind: NodeResourcesFitArgs, scoringStrategy: {type: MostAllocated}}}]}]",
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}]}]", nil},
		{"arguments of no version", "v1beta2",
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: [example.com/a]}}]}]",
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: [example.com/a]}}], plugins: {" + weights + "}}]",
			[]string{"profiles[0].plugins.multiPoint.enabled: InterPodAffinity, NodeAffinity, TaintToleration score with weight 1"}},
		{"weights", "v1beta2", "profiles: [{plugins: {score: {enabled: [{name: NodeAffinity, weight: 9}]}}}]",
			"profiles: [{plugins: {score: {enabled: [{name: NodeAffinity, weight: 9}]}, " + weights + "}}]",
			[]string{"profiles[0].plugins.multiPoint.enabled: "}},
		{"plugins that are no more", "v1beta3",
			"profiles: [{plugins: {score: {enabled: [{name: SelectorSpread}, {name: NodeAffinity}]}, filter: {enabled: [{name: EBSLimits}]}}, pluginConfig: [{name: NodePreferAvoidPods}]}]",
			"profiles: [{plugins: {score: {enabled: [{name: NodeAffinity}]}, filter: {enabled: []}}, pluginConfig: []}]",
			[]string{"profiles[0].pluginConfig: there is no plugin NodePreferAvoidPods any more", "profiles[0].plugins.filter.enabled: there is no plugin EBSLimits any more",
				"profiles[0].plugins.score.enabled: there is no plugin SelectorSpread any more: leave it out; PodTopologySpread"}},
		{"addresses", "v1beta2", "healthzBindAddress: 0.0.0.0:0\nprofiles: [{plugins: {multiPoint: {disabled: [{name: '*'}]}}}]",
			"profiles: [{plugins: {multiPoint: {disabled: [{name: '*'}]}}}]", []string{"healthzBindAddress is ignored"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, warned, err := read(t, c.version, c.old)
			if err != nil {
				t.Fatal(err)
			}
			now, none, err := read(t, "v1", c.now)
			if err != nil || len(none) > 0 {
				t.Fatal(err, none)
			}
			if diff := cmp.Diff(now, old); diff != "" {
				t.Error(diff)
			}
			i := slices.IndexFunc(warned, func(w string) bool {
				return strings.HasPrefix(w, "kubescheduler.config.k8s.io/"+c.version+" KubeSchedulerConfiguration is no longer") && strings.HasSuffix(w, configv1.SchemeGroupVersion.String())
			})
			if i < 0 {
				t.Fatalf("warned: %q", warned)
			}
			warned = slices.Delete(warned, i, i+1)
			slices.Sort(warned)
			if !slices.EqualFunc(warned, c.warned, strings.HasPrefix) {
				t.Errorf("warned: %q", warned)
			}
		})
	}
}
