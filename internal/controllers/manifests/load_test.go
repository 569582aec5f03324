package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const (
	configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n"
	namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: ns}\n"
	crd       = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: d}\n"
	list      = "apiVersion: v1\nkind: List\nitems:\n" +
		"- {apiVersion: v1, kind: Secret, metadata: {name: s}}\n- {apiVersion: v1, kind: Secret, metadata: {name: t}}\n"
	jsonText = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"j"}}`
)

// TestLoadInOrder checks that the objects in files and directories are loaded and sorted for Apply.
func TestLoadInOrder(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", "# a comment\n---\n"+configMap+"---\n"+namespace+"---\n---\n"+crd)
	write(t, dir, "b.json", jsonText)
	write(t, dir, "notes.md", "not a manifest: {")
	single := write(t, t.TempDir(), "list.yml", list)
	objects, err := load([]string{single, dir})
	if err != nil {
		t.Fatal(err)
	}
	definitions := sortForApply(objects)
	var names []string
	for _, o := range objects {
		names = append(names, o.name)
	}
	if got := strings.Join(names, " "); got != "d ns s t c j" || definitions != 1 {
		t.Errorf("order %q with %d definitions, want %q with 1", got, definitions, "d ns s t c j")
	}
}

// TestLoadRefuses checks that load rejects invalid files, and names the file in the error.
func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"nameless.yaml":  "apiVersion: v1\nkind: ConfigMap\n",
		"kindless.yaml":  "metadata: {name: a}\n",
		"broken.yaml":    "a: [\n",
		"scalar.yaml":    "just text\n",
		"truncated.json": `{"apiVersion":"v1",`,
	} {
		_, err := load([]string{write(t, dir, name, text)})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got error %v, want an error with the file name", name, err)
		}
	}
	if _, err := load([]string{t.TempDir()}); err == nil {
		t.Error("load accepted an empty directory")
	}
	if _, err := load([]string{filepath.Join(dir, "missing")}); err == nil {
		t.Error("load accepted a missing file")
	}
}

// FuzzParse checks that parse returns no object without a name or kind.
func FuzzParse(f *testing.F) {
	for _, text := range []string{configMap, list, jsonText, "---\n---", "a: [", "null"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, err := parse("f", data)
		for _, o := range objects {
			if err == nil && (o.name == "" || o.kind.Kind == "") {
				t.Errorf("got an object without name or kind: %v", o)
			}
		}
	})
}
