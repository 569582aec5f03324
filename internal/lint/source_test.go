// Package lint_test checks rules about the source code and the pages of this repository: sizes, imports, comments,
// prose and tables. Each rule is one test.
package lint_test

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	module = "github.com/trellis-k8s/trellis/"
	root   = "../.."
)

// update writes the generated parts of pages instead of comparing them: go test ./internal/lint -update.
var update = flag.Bool("update", false, "write the generated parts of pages")

// source is one parsed Go file.
type source struct {
	path string // relative to the root of the repository
	text string
	ast  *ast.File
	fset *token.FileSet
	test bool
}

// folder returns the folder of the file.
func (s *source) folder() string { return filepath.ToSlash(filepath.Dir(s.path)) }

func (s *source) line(p token.Pos) int { return s.fset.Position(p).Line }

// files calls f with each text file of the repository.
func files(t *testing.T, f func(path string, data []byte)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel == ".git" || rel == "bin" || rel == ".trellis" {
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(path) {
		case ".go", ".md", ".sh", ".yaml", ".txtar", ".proto", "":
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			f(filepath.ToSlash(rel), data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// parsed holds the result of sources.
var parsed []*source

// sources returns all Go files of the repository. It parses them once.
func sources(t *testing.T) []*source {
	t.Helper()
	if parsed != nil {
		return parsed
	}
	var all []*source
	files(t, func(path string, data []byte) {
		if filepath.Ext(path) != ".go" {
			return
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, data, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%v", err)
			return
		}
		all = append(all, &source{path, string(data), file, fset, strings.HasSuffix(path, "_test.go")})
	})
	if len(all) < 20 {
		t.Fatalf("got %d Go files, want at least 20", len(all))
	}
	parsed = all
	return all
}

// written returns the sources that are neither tests nor generated.
func written(t *testing.T) []*source {
	t.Helper()
	var all []*source
	for _, s := range sources(t) {
		if !s.test && !ast.IsGenerated(s.ast) {
			all = append(all, s)
		}
	}
	return all
}

// readPage returns the text of a file of the repository.
func readPage(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
