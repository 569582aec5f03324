package main

import (
	"path/filepath"
	"testing"

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
)

// documents returns the files of the Kubernetes documentation that match a pattern. It searches a folder beside this
// checkout. If nothing matches there, it searches testdata/documents, which has files with the same names and
// equivalent objects.
func documents(t *testing.T, pattern string) []string {
	t.Helper()
	for _, folder := range []string{outside.Path("spec/examples"), "testdata/documents"} {
		files, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) > 0 {
			return files
		}
	}
	t.Fatalf("no document matches %s", pattern)
	return nil
}

// document returns the only file that matches a pattern.
func document(t *testing.T, pattern string) string {
	t.Helper()
	files := documents(t, pattern)
	if len(files) != 1 {
		t.Fatalf("%s matches %v, want one file", pattern, files)
	}
	return files[0]
}
