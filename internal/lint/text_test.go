package lint_test

import (
	"go/ast"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestOnePackageComment(t *testing.T) {
	comments := map[string][]string{}
	for _, s := range written(t) {
		list := comments[s.room()]
		if s.ast.Doc != nil {
			list = append(list, s.path)
			if s.ast.Name.Name != "main" && !strings.HasPrefix(s.ast.Doc.Text(), "Package "+s.ast.Name.Name+" ") {
				t.Errorf("%s: the package comment does not start with \"Package %s\"", s.path, s.ast.Name.Name)
			}
		}
		comments[s.room()] = list
	}
	for room, list := range comments {
		if len(list) != 1 {
			t.Errorf("%s has %d package comments, want one: %v", room, len(list), list)
		}
	}
}

func TestNoInit(t *testing.T) {
	for _, s := range written(t) {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s:%d: init(): pass values instead", s.path, s.line(f.Pos()))
			}
		}
	}
}

func TestTestsDoNotSleep(t *testing.T) {
	for _, s := range sources(t) {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if call, ok := n.(*ast.SelectorExpr); ok && call.Sel.Name == "Sleep" {
				if pkg, ok := call.X.(*ast.Ident); ok && pkg.Name == "time" {
					t.Errorf("%s:%d: time.Sleep: wait for what is meant", s.path, s.line(call.Pos()))
				}
			}
			return true
		})
	}
}

func TestExportedNamesAreExplained(t *testing.T) {
	for _, s := range written(t) {
		if s.ast.Name.Name == "main" {
			continue
		}
		for _, d := range s.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && (d.Recv == nil || receiverExported(d)) && !obvious[d.Name.Name] {
					t.Errorf("%s:%d: %s has no comment", s.path, s.line(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					typ, ok := spec.(*ast.TypeSpec)
					if ok && typ.Name.IsExported() && d.Doc == nil && typ.Doc == nil && typ.Comment == nil {
						t.Errorf("%s:%d: %s has no comment", s.path, s.line(typ.Pos()), typ.Name.Name)
					}
				}
			}
		}
	}
}

// obvious are methods whose contract is that of a well-known interface.
var obvious = map[string]bool{"Error": true, "Unwrap": true, "String": true, "Len": true, "Less": true, "Swap": true, "Write": true, "Read": true, "Close": true}

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

// marks are what must not be left behind. They are put together here so that this file
// does not trip over itself.
var marks = map[string]*regexp.Regexp{
	"a note to oneself": regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`),
	"a machine path":    regexp.MustCompile(`(^|[\s"'(=` + "`" + `])/(wo` + `rk|ro` + `ot|ho` + `me|Us` + `ers|t` + `mp)/`),
}

func TestNothingLeftBehind(t *testing.T) {
	files(t, func(path string, data []byte) {
		if filepath.Base(path) == "LICENSE" {
			return
		}
		for n, line := range strings.Split(string(data), "\n") {
			for what, mark := range marks {
				if mark.MatchString(line) {
					t.Errorf("%s:%d: %s: %s", path, n+1, what, strings.TrimSpace(line))
				}
			}
		}
	})
}
