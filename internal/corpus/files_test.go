package corpus_test

import (
	"os"
	"path/filepath"
	"sort"
	"testing"

	"sigs.k8s.io/yaml"
)

// root is the folder of real CRDs and samples that stands beside a checkout. It
// is other projects' data and not part of this one.
const root = "../../../shared/corpus"

func requireCorpus(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, "crds")); err != nil {
		t.Skipf("the corpus of real CRDs is not beside this checkout (%s)", root)
	}
}

// file is one YAML file of the corpus.
type file struct {
	path string
	yaml []byte
	tree map[string]any
}

func (f file) name() string { return nested[string](f.tree, "metadata", "name") }

func nested[T any](v any, path ...string) T {
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	out, _ := v.(T)
	return out
}

// projects lists the folders below kind ("crds", "samples"). Under the race detector, which
// makes everything ten times slower, and with -short, only some are taken.
func projects(t *testing.T, kind string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, kind))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if !small() || inSmallRun[e.Name()] {
			names = append(names, e.Name())
		}
	}
	sort.Strings(names)
	return names
}

func small() bool { return raceEnabled || testing.Short() }

// inSmallRun are projects that between them hold the corpus' odd cases and take
// seconds, not minutes.
var inSmallRun = map[string]bool{
	"cert-manager": true, "metallb": true, "karpenter": true, "velero": true, "gateway-api-experimental": true,
	"tekton-pipeline": true, "flux-source-controller": true, "calico": true, "jobset": true,
}

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
