package main

import (
	"path/filepath"
	"testing"
)

// documents returns the files of the Kubernetes documentation that match a pattern. It looks for them in a folder
// beside this checkout. Without that folder, it returns files of the same names in testdata/documents with equivalent
// objects.
func documents(t *testing.T, pattern string) []string {
	t.Helper()
	for _, folder := range []string{"../../../../shared/spec/examples", "testdata/documents"} {
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
