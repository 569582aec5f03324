// Package house_test holds the rules of the house: what every file, function and import of
// this module must be like. Each rule is one test; a new rule starts here.
package lint_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/trellis-k8s/trellis/"

// source is one parsed Go file.
type source struct {
	path string // below the root of the module
	text string
	ast  *ast.File
	fset *token.FileSet
	test bool
}

// room is the folder that the file lies in.
func (s *source) room() string { return filepath.ToSlash(filepath.Dir(s.path)) }

func (s *source) line(p token.Pos) int { return s.fset.Position(p).Line }

const root = "../.."

// files calls f with every file of the module that people write.
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
			f(rel, data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// sources parses every Go file of the module.
func sources(t *testing.T) []*source {
	t.Helper()
	var all []*source
	files(t, func(path string, data []byte) {
		if filepath.Ext(path) != ".go" {
			return
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, path, data, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%v", err)
			return
		}
		all = append(all, &source{path, string(data), parsed, fset, strings.HasSuffix(path, "_test.go")})
	})
	if len(all) < 20 {
		t.Fatalf("only %d Go files found", len(all))
	}
	return all
}

// written leaves out tests and what a generator wrote.
func written(t *testing.T) []*source {
	var all []*source
	for _, s := range sources(t) {
		if !s.test && !ast.IsGenerated(s.ast) {
			all = append(all, s)
		}
	}
	return all
}
