package lint_test

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	quotedGo   = regexp.MustCompile("`([a-z0-9_/*]+\\.go)`")
	quotedPath = regexp.MustCompile("`((?:internal|cmd|docs|examples|apiserver|testserver)/[^`{} ]*)`")
	quotedName = regexp.MustCompile("`([a-z]+)\\.([A-Z][A-Za-z]*)(?:\\.([A-Z][A-Za-z]*))?`")
	link       = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
)

// TestPagesNameExistingCode checks that files, folders, exported names and link targets in pages exist.
func TestPagesNameExistingCode(t *testing.T) {
	var paths []string
	names := map[string]bool{} // package.Name and package.Type.Method
	files(t, func(p string, _ []byte) { paths = append(paths, filepath.ToSlash(p)) })
	for _, s := range written(t) {
		declared(s.ast, names)
	}
	files(t, func(page string, data []byte) {
		if filepath.Ext(page) != ".md" {
			return
		}
		text := string(data)
		for _, m := range quotedGo.FindAllStringSubmatch(text, -1) {
			if !anyFile(paths, m[1]) {
				t.Errorf("%s: file %s does not exist", page, m[1])
			}
		}
		for _, m := range quotedPath.FindAllStringSubmatch(text, -1) {
			if page == requirementsPage {
				break // this page quotes the specification, which contains names of its files
			}
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		for _, m := range quotedName.FindAllStringSubmatch(text, -1) {
			name := strings.TrimSuffix(m[1]+"."+m[2]+"."+m[3], ".")
			if _, err := os.Stat(filepath.Join(root, "internal", m[1])); err == nil && !names[name] {
				t.Errorf("%s: %s does not exist", page, name)
			}
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	})
}

// anyFile reports whether one of the paths ends in pattern. The pattern may contain *.
func anyFile(paths []string, pattern string) bool {
	depth := strings.Count(pattern, "/") + 1
	for _, p := range paths {
		parts := strings.Split(p, "/")
		end := strings.Join(parts[max(0, len(parts)-depth):], "/")
		if ok, err := path.Match(pattern, end); err == nil && ok {
			return true
		}
	}
	return false
}

// declared adds the names of the declarations in a file.
func declared(f *ast.File, names map[string]bool) {
	add := func(name string) { names[f.Name.Name+"."+name] = true }
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				add(d.Name.Name)
				continue
			}
			of := d.Recv.List[0].Type
			if p, ok := of.(*ast.StarExpr); ok {
				of = p.X
			}
			if i, ok := of.(*ast.Ident); ok {
				add(i.Name + "." + d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if spec, ok := s.(*ast.TypeSpec); ok {
					add(spec.Name.Name)
				}
			}
		}
	}
}

// TestDependenciesHaveReasons checks that docs/dependencies.md names each module that go.mod requires directly.
func TestDependenciesHaveReasons(t *testing.T) {
	reasons := readPage(t, "docs/dependencies.md")
	direct, _, _ := strings.Cut(strings.SplitAfter(readPage(t, "go.mod"), "require (")[1], ")")
	for _, line := range strings.Split(strings.TrimSpace(direct), "\n") {
		module, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		name := regexp.MustCompile(`/v\d+$`).ReplaceAllString(module, "")
		if !strings.Contains(reasons, path.Base(name)) {
			t.Errorf("docs/dependencies.md has no reason for %s", module)
		}
	}
}
