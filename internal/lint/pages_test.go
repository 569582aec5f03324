package lint_test

import (
	"go/ast"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	quotedGo   = regexp.MustCompile("`([a-z0-9_/*]+\\.go)`")
	quotedPath = regexp.MustCompile("`((?:internal|cmd|docs|examples|apiserver|testserver)/[^`{} ]*)`")
	quotedDir  = regexp.MustCompile("`([a-z]+(?:/[a-z]+)+)`")
	quotedName = regexp.MustCompile("`([a-z]+)\\.([A-Z][A-Za-z]*)(?:\\.([A-Z][A-Za-z]*))?`")
	nameInFile = regexp.MustCompile("`([A-Za-z]+)` in `([a-z0-9_/]+\\.go)`")
	link       = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)

	// A stop of a tour names a file below internal and a function in it.
	stopItem   = regexp.MustCompile(`^[0-9]+\. `)
	stop       = regexp.MustCompile("^[0-9]+\\. `([a-z0-9_/]+\\.go)`, `([^` ]+)`: ")
	breakpoint = regexp.MustCompile("`([a-z]+\\.(?:\\(\\*[A-Za-z]+\\)|[A-Za-z]+)(?:\\.[A-Za-z]+)?)`")
)

// TestPagesNameExistingCode checks that files, folders, exported names and link targets in pages exist.
func TestPagesNameExistingCode(t *testing.T) {
	var paths []string
	names := map[string]bool{} // package.Name and package.Type.Method
	files(t, func(p string, _ []byte) { paths = append(paths, filepath.ToSlash(p)) })
	inFiles := map[string]map[string]bool{} // names without a package or a type, by file
	for _, s := range written(t) {
		declared(s.ast, names)
		inFiles[s.path] = unqualified(s.ast)
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
		for _, m := range quotedDir.FindAllStringSubmatch(text, -1) {
			if page == packagesPage && !isFolder(m[1]) && !isFolder("internal/"+m[1]) {
				t.Errorf("%s: folder %s does not exist", page, m[1])
			}
		}
		for _, m := range quotedName.FindAllStringSubmatch(text, -1) {
			name := strings.TrimSuffix(m[1]+"."+m[2]+"."+m[3], ".")
			if _, err := os.Stat(filepath.Join(root, "internal", m[1])); err == nil && !names[name] {
				t.Errorf("%s: %s does not exist", page, name)
			}
		}
		for _, m := range nameInFile.FindAllStringSubmatch(text, -1) {
			if !slices.ContainsFunc(paths, func(p string) bool { return isFile(p, m[2]) && inFiles[p][m[1]] }) {
				t.Errorf("%s: %s does not declare %s", page, m[2], m[1])
			}
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	})
}

// isFolder reports whether the repository has a folder.
func isFolder(p string) bool {
	info, err := os.Stat(filepath.Join(root, p))
	return err == nil && info.IsDir()
}

// anyFile reports whether one of the paths ends in pattern. The pattern may contain *.
func anyFile(paths []string, pattern string) bool {
	return slices.ContainsFunc(paths, func(p string) bool { return isFile(p, pattern) })
}

// isFile reports whether a path ends in pattern. The pattern may contain *.
func isFile(p, pattern string) bool {
	parts := strings.Split(p, "/")
	end := strings.Join(parts[max(0, len(parts)-strings.Count(pattern, "/")-1):], "/")
	ok, err := path.Match(pattern, end)
	return err == nil && ok
}

// TestTourNamesFunctions checks that each stop of docs/tour.md names a function and its file, in the form of a
// breakpoint. It also checks all other names of functions and types in the page.
func TestTourNamesFunctions(t *testing.T) {
	names := map[string]bool{}         // of functions and types
	functions := map[string][]string{} // files below internal by function, such as read.(*Reader).Get
	for _, s := range written(t) {
		file, internal := strings.CutPrefix(s.path, "internal/")
		if !internal {
			continue
		}
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				name := functionName(s.ast, f)
				functions[name] = append(functions[name], file)
			}
		}
		declared(s.ast, names)
	}
	stops := 0
	for i, line := range strings.Split(readPage(t, "docs/tour.md"), "\n") {
		if m := stop.FindStringSubmatch(line); m != nil {
			stops++
			if !slices.Contains(functions[m[2]], m[1]) {
				t.Errorf("docs/tour.md:%d: %s does not declare the function %s", i+1, m[1], m[2])
			}
		} else if stopItem.MatchString(line) {
			t.Errorf("docs/tour.md:%d: the stop must begin with `file`, `function` and a colon", i+1)
		}
		for _, m := range breakpoint.FindAllStringSubmatch(line, -1) {
			if functions[m[1]] == nil && (!names[m[1]] || strings.Count(m[1], ".") > 1) {
				t.Errorf("docs/tour.md:%d: %s does not exist", i+1, m[1])
			}
		}
	}
	if stops == 0 {
		t.Error("docs/tour.md has no stops")
	}
}

// functionName returns the name of a function for a debugger.
func functionName(f *ast.File, d *ast.FuncDecl) string {
	if d.Recv == nil {
		return f.Name.Name + "." + d.Name.Name
	}
	of := types.ExprString(d.Recv.List[0].Type)
	if strings.HasPrefix(of, "*") {
		of = "(" + of + ")"
	}
	return f.Name.Name + "." + of + "." + d.Name.Name
}

// unqualified returns the names of the declarations in a file, without packages and types.
func unqualified(f *ast.File) map[string]bool {
	names := map[string]bool{}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			names[d.Name.Name] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					names[s.Name.Name] = true
				case *ast.ValueSpec:
					for _, id := range s.Names {
						names[id.Name] = true
					}
				}
			}
		}
	}
	return names
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
