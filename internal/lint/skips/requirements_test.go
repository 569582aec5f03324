package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// requirement matches the IDs of requirements that tests cite.
var requirement = regexp.MustCompile(`\b(CRD|SCH|VAL|DEF|OAS|PRN|SUB|VER|CNV|AGG|EXT|SCD|HPX|SOX|KON)-[0-9]{3}[a-z]?\b`)

// declaration is a declaration in the tests of a package.
type declaration struct {
	text string // includes the comments above it
	uses map[string]bool
}

// declarations returns the declarations in the tests of each package by their names. It calls the function files
// with the text of each file in a testdata folder.
func declarations(t *testing.T, files func(text string)) map[string]map[string]*declaration {
	t.Helper()
	all := map[string]map[string]*declaration{}
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && (d.Name() == ".git" || d.Name() == "bin") {
				return filepath.SkipDir
			}
			return err
		}
		isTest := strings.HasSuffix(path, "_test.go")
		if !isTest && !strings.Contains(path, "/testdata/") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || !isTest {
			files(string(text))
			return err
		}
		folder, err := filepath.Rel(repository, filepath.Dir(path))
		if err != nil {
			return err
		}
		if all[folder] == nil {
			all[folder] = map[string]*declaration{}
		}
		return declare(all[folder], string(text))
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// declare adds the declarations of a file.
func declare(all map[string]*declaration, text string) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", text, parser.ParseComments)
	if err != nil {
		return err
	}
	end := 0
	for i, d := range file.Decls {
		start := end
		if end = fset.Position(d.End()).Offset; i == len(file.Decls)-1 {
			end = len(text)
		}
		more := declaration{text[start:end], map[string]bool{}}
		ast.Inspect(d, func(n ast.Node) bool {
			if name, ok := n.(*ast.Ident); ok {
				more.uses[name.Name] = true
			}
			return true
		})
		for _, name := range declared(d) {
			if all[name] == nil {
				all[name] = &declaration{uses: map[string]bool{}}
			}
			all[name].text += more.text
			maps.Copy(all[name].uses, more.uses)
		}
	}
	return nil
}

// declared returns the names of a declaration.
func declared(d ast.Decl) (names []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return []string{d.Name.Name}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok {
				for _, name := range v.Names {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}

// reach adds the requirements that a declaration cites to the map into. It does the same for all declarations that
// this declaration uses.
func reach(of map[string]*declaration, name string, seen map[string]bool, into map[string]bool) {
	d := of[name]
	if d == nil || seen[name] {
		return
	}
	seen[name] = true
	for _, id := range requirement.FindAllString(d.text, -1) {
		into[id] = true
	}
	for use := range d.uses {
		if !strings.HasPrefix(use, "Test") {
			reach(of, use, seen, into)
		}
	}
}

// TestRequirementsNeedNothingElse checks that each cited requirement is cited by a test that needs only a clone of
// the repository. Tests that need other files have a line in .ci/skips.
func TestRequirementsNeedNothingElse(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, ".ci", "skips"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	beside := map[string]bool{} // tests that need files outside the clone, by package and test
	for _, a := range list {
		if slices.ContainsFunc(a.needs, func(need string) bool { return strings.HasPrefix(need, "../") }) {
			beside[a.folder+" "+strings.TrimSuffix(a.test, "/...")] = true
		}
	}
	named, alone := map[string]bool{}, map[string]bool{}
	all := declarations(t, func(text string) {
		for _, id := range requirement.FindAllString(text, -1) {
			alone[id] = true
		}
	})
	for folder, of := range all {
		seen := map[bool]map[string]bool{false: {}, true: {}}
		for name := range of {
			switch skips := beside[folder+" "+name]; {
			case !regexp.MustCompile(`^(Test|Fuzz)[A-Z]`).MatchString(name):
			case skips:
				reach(of, name, seen[true], named)
			default:
				reach(of, name, seen[false], alone)
			}
		}
	}
	if len(alone) < 700 {
		t.Errorf("got %d requirements, want at least 700", len(alone))
	}
	for _, id := range slices.Sorted(maps.Keys(named)) {
		if !alone[id] {
			t.Errorf("%s is cited only by tests that need files outside the clone", id)
		}
	}
	t.Logf("%d requirements are cited by tests that need only a clone", len(alone))
}
