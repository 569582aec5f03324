package corpus_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/testserver"
)

// TestInvalidSamples checks that samples with placeholders, and intentionally invalid samples, get the same errors as
// upstream, and never a server error (VAL-001 VAL-018).
func TestInvalidSamples(t *testing.T) {
	requireCorpus(t)
	c := newClient(t, testserver.Start(t).Config)
	for _, folder := range []string{"samples-negative-path", "samples-placeholder"} {
		for _, project := range projects(t, folder) {
			t.Run(folder+"/"+project, func(t *testing.T) {
				testInvalidSamples(t, c, read(t, folder, project), project)
			})
		}
	}
}

func testInvalidSamples(t *testing.T, c *client, samples []file, project string) {
	kinds := installFor(t, c, project, samples)
	for i, sample := range samples {
		s, ok := kinds[kindOf(sample)]
		if !ok {
			if !strings.HasSuffix(project, "-standard") { // -standard lacks some kinds of -experimental
				t.Errorf("%s: its kind is not served", sample.path)
			}
			continue
		}
		if _, err := c.do("POST", s.collection("default")+"?dryRun=All", asYAML, sample.yaml); err != nil &&
			!clientError.MatchString(err.Error()) {
			t.Errorf("%s: %v", sample.path, err)
		}
		// The function create compares the errors of the schema. Errors of placeholders in the metadata would hide
		// them.
		sample.tree["metadata"] = map[string]any{"name": fmt.Sprintf("invalid-%d", i)}
		sample.yaml, _ = yaml.Marshal(sample.tree)
		create(t, c, s, sample, "default", i)
	}
}

var clientError = regexp.MustCompile(`: 4\d\d `)

// installFor installs those CRDs of a project that the samples use. If samples is nil, it installs all CRDs of the
// project.
func installFor(t *testing.T, c *client, project string, samples []file) map[string]served {
	t.Helper()
	wanted := map[string]bool{}
	for _, sample := range samples {
		group, _, _ := strings.Cut(nested[string](sample.tree, "apiVersion"), "/")
		wanted[group+" "+nested[string](sample.tree, "kind")] = true
	}
	kinds := map[string]served{}
	for _, crd := range read(t, "crds", project) {
		if samples != nil && !wanted[nested[string](crd.tree, "spec", "group")+" "+
			nested[string](crd.tree, "spec", "names", "kind")] {
			continue
		}
		for _, s := range install(t, c, crd) {
			kinds[s.apiVersion()+" "+s.kind] = s
		}
	}
	return kinds
}

func kindOf(f file) string {
	return nested[string](f.tree, "apiVersion") + " " + nested[string](f.tree, "kind")
}
