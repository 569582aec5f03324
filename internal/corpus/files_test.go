package corpus_test

import (
	"os"
	"path/filepath"
	"sort"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
)

// root is the directory of real CRDs and samples, next to the checkout. The files belong to other projects and are not
// in this repository.
var root = outside.Path("corpus")

// requireCorpus skips the test if the corpus is missing.
func requireCorpus(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, "crds")); err != nil {
		t.Skipf("the corpus of real CRDs is missing (%s)", root)
	}
}

// file is one YAML file of the corpus.
type file struct {
	path string
	yaml []byte
	tree map[string]any
}

func (f file) name() string { return nested[string](f.tree, "metadata", "name") }

// nested returns the value at a path of decoded JSON, or the zero value of T if the value is missing or is not a T.
func nested[T any](v any, path ...string) T {
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	out, _ := v.(T)
	return out
}

// projects returns the directories of projects in the directory kind, which is "crds" or "samples", for example. With
// -short it returns only a selection, and also with the race detector, because that is ten times slower.
func projects(t *testing.T, kind string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, kind))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if !smallRun() || smallProjects[e.Name()] {
			names = append(names, e.Name())
		}
	}
	sort.Strings(names)
	return names
}

func smallRun() bool { return raceEnabled || testing.Short() }

// smallProjects selects projects that cover the unusual cases of the corpus and take seconds instead of minutes.
var smallProjects = map[string]bool{
	"cert-manager": true, "metallb": true, "karpenter": true, "velero": true, "gateway-api-experimental": true,
	"tekton-pipeline": true, "flux-source-controller": true, "calico": true, "jobset": true,
}

// read returns the YAML files of a project in the directory kind.
func read(t *testing.T, kind, project string) []file {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, kind, project, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var files []file
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f := file{path: path, yaml: data}
		if err := yaml.Unmarshal(data, &f.tree); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		files = append(files, f)
	}
	return files
}
