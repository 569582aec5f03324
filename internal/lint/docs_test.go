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
	quotedPath = regexp.MustCompile("`((?:internal|cmd|docs|examples|apiserver|testserver|conversionwebhook)/[^`{} ]*)`")
	quotedName = regexp.MustCompile("`([a-z]+)\\.([A-Z][A-Za-z]*)(?:\\.([A-Z][A-Za-z]*))?`")
	link       = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
)

// Every file, folder and exported name that a page names is there, and so is what it links to.
func TestPagesNameWhatThereIs(t *testing.T) {
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
				t.Errorf("%s: there is no file %s", page, m[1])
			}
		}
		for _, m := range quotedPath.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		for _, m := range quotedName.FindAllStringSubmatch(text, -1) {
			name := strings.TrimSuffix(m[1]+"."+m[2]+"."+m[3], ".")
			if _, err := os.Stat(filepath.Join(root, "internal", m[1])); err == nil && !names[name] {
				t.Errorf("%s: there is no %s", page, name)
			}
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	})
}

// anyFile finds a file by the end of its path, in which * stands for any letters.
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

// Each room is in the picture, and each module that is asked for has its reason.
func TestPagesHaveAll(t *testing.T) {
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	picture := read("docs/architecture.md")
	for _, room := range rooms {
		if !strings.Contains(picture, path.Base(room)) {
			t.Errorf("docs/architecture.md does not show %s", room)
		}
	}
	reasons := read("docs/dependencies.md")
	direct, _, _ := strings.Cut(strings.SplitAfter(read("go.mod"), "require (")[1], ")")
	for _, line := range strings.Split(strings.TrimSpace(direct), "\n") {
		module, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		name := regexp.MustCompile(`/v\d+$`).ReplaceAllString(module, "")
		if !strings.Contains(reasons, path.Base(name)) {
			t.Errorf("docs/dependencies.md does not say why %s is there", module)
		}
	}
}
