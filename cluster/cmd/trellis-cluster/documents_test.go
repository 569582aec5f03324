package main

import (
	"path/filepath"
	"testing"
)

// documents returns the files of the documentation that a pattern finds beside this checkout. Where there are none, it returns the files of the
// same names in testdata/documents. These have the same objects in other words.
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
	t.Fatalf("there is no document %s", pattern)
	return nil
}

// document returns one of them.
func document(t *testing.T, pattern string) string {
	t.Helper()
	files := documents(t, pattern)
	if len(files) != 1 {
		t.Fatalf("document %s: %v", pattern, files)
	}
	return files[0]
}
