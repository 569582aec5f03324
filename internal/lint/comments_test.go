package lint_test

import (
	"go/ast"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestOnePackageComment checks that each package has exactly one package comment, which starts with the package's name.
func TestOnePackageComment(t *testing.T) {
	comments := map[string][]string{}
	for _, s := range written(t) {
		list := comments[s.folder()]
		if s.ast.Doc != nil {
			list = append(list, s.path)
			if s.ast.Name.Name != "main" && !strings.HasPrefix(s.ast.Doc.Text(), "Package "+s.ast.Name.Name+" ") {
				t.Errorf("%s: the package comment does not start with \"Package %s\"", s.path, s.ast.Name.Name)
			}
		}
		comments[s.folder()] = list
	}
	for folder, list := range comments {
		if len(list) != 1 {
			t.Errorf("%s has %d package comments, want 1: %v", folder, len(list), list)
		}
	}
}

// TestNoInit checks that no package has an init function.
func TestNoInit(t *testing.T) {
	for _, s := range written(t) {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s:%d: init functions are not allowed: pass values as arguments", s.path, s.line(f.Pos()))
			}
		}
	}
}

// TestTestsDoNotSleep checks that tests wait for a condition and not for a time.
func TestTestsDoNotSleep(t *testing.T) {
	for _, s := range sources(t) {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if call, ok := n.(*ast.SelectorExpr); ok && call.Sel.Name == "Sleep" {
				if pkg, ok := call.X.(*ast.Ident); ok && pkg.Name == "time" {
					t.Errorf("%s:%d: time.Sleep is not allowed in tests: wait for a condition", s.path,
						s.line(call.Pos()))
				}
			}
			return true
		})
	}
}

// TestExportedNamesHaveComments checks that exported functions and types have a doc comment that starts with their
// name.
func TestExportedNamesHaveComments(t *testing.T) {
	for _, s := range written(t) {
		if s.ast.Name.Name == "main" {
			continue
		}
		for _, d := range s.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && (d.Recv == nil || receiverExported(d)) &&
					!(d.Doc == nil && obvious[d.Name.Name]) {
					checkDoc(t, s, d.Name, d.Doc)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					typ, ok := spec.(*ast.TypeSpec)
					if ok && typ.Name.IsExported() && typ.Comment == nil {
						checkDoc(t, s, typ.Name, firstOf(typ.Doc, d.Doc))
					}
				}
			}
		}
	}
}

// TestCommentsHaveTheirNames checks that the comment of a function does not start with its name in another case, which
// happens if the function is renamed.
func TestCommentsHaveTheirNames(t *testing.T) {
	for _, s := range sources(t) {
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Doc == nil {
				continue
			}
			first, _, _ := strings.Cut(f.Doc.Text(), " ")
			if first != f.Name.Name && strings.EqualFold(first, f.Name.Name) {
				t.Errorf("%s:%d: the comment of %s starts with %s", s.path, s.line(f.Pos()), f.Name.Name, first)
			}
		}
	}
}

func firstOf(groups ...*ast.CommentGroup) *ast.CommentGroup {
	for _, g := range groups {
		if g != nil {
			return g
		}
	}
	return nil
}

// checkDoc reports a doc comment that is missing or does not start with the name.
func checkDoc(t *testing.T, s *source, name *ast.Ident, doc *ast.CommentGroup) {
	t.Helper()
	switch {
	case doc == nil:
		t.Errorf("%s:%d: %s has no comment", s.path, s.line(name.Pos()), name.Name)
	case !strings.HasPrefix(doc.Text(), name.Name+" "):
		t.Errorf("%s:%d: the comment of %s does not start with its name", s.path, s.line(name.Pos()), name.Name)
	}
}

// obvious holds methods of well-known interfaces. They need no comment.
var obvious = map[string]bool{
	"Error": true, "Unwrap": true, "String": true, "Len": true, "Less": true, "Swap": true, "Write": true, "Read": true,
	"Close": true,
}

func receiverExported(f *ast.FuncDecl) bool {
	exported := false
	ast.Inspect(f.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && id.IsExported() {
			exported = true
		}
		return true
	})
	return exported
}

// marks match text that must not be committed. The expressions are split, so that they do not match this file.
var marks = map[string]*regexp.Regexp{
	"an open note": regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`),
	"a machine path": regexp.MustCompile(`(^|[\s"'(=` + "`" + `])/(wo` + `rk|ro` + `ot|ho` + `me|Us` + `ers|t` +
		`mp)/`),
}

// TestNothingLeftBehind checks that no file contains notes about open work or paths of a developer's machine.
func TestNothingLeftBehind(t *testing.T) {
	files(t, func(path string, data []byte) {
		if filepath.Base(path) == "LICENSE" {
			return
		}
		for n, line := range strings.Split(string(data), "\n") {
			for name, mark := range marks {
				if mark.MatchString(line) {
					t.Errorf("%s:%d: %s: %s", path, n+1, name, strings.TrimSpace(line))
				}
			}
		}
	})
}
