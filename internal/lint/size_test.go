package lint_test

import (
	"go/ast"
	"strings"
	"testing"
)

const (
	maxFile     = 499
	maxFunction = 100
	maxNesting  = 4
)

// TestFilesAreShort checks that files have at most 499 lines.
func TestFilesAreShort(t *testing.T) {
	for _, s := range written(t) {
		if n := strings.Count(s.text, "\n"); n > maxFile {
			t.Errorf("%s has %d lines, more than %d", s.path, n, maxFile)
		}
	}
}

// TestFunctionsAreShort checks that functions have at most 100 lines.
func TestFunctionsAreShort(t *testing.T) {
	for _, s := range written(t) {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			name := "a function literal"
			switch f := n.(type) {
			case *ast.FuncDecl:
				name = f.Name.Name
			case *ast.FuncLit:
			default:
				return true
			}
			if lines := s.line(n.End()) - s.line(n.Pos()) + 1; lines > maxFunction {
				t.Errorf("%s:%d: %s has %d lines, more than %d", s.path, s.line(n.Pos()), name, lines, maxFunction)
			}
			return true
		})
	}
}

// TestNestingIsShallow checks that statements nest at most four deep.
func TestNestingIsShallow(t *testing.T) {
	for _, s := range written(t) {
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if ok && f.Body != nil {
				if deep, at := nesting(f.Body); deep > maxNesting {
					t.Errorf("%s:%d: %s nests %d deep, more than %d", s.path, s.line(at.Pos()), f.Name.Name, deep,
						maxNesting)
				}
			}
		}
	}
}

// nesting returns the greatest depth of nested statements with a body, and the deepest statement. The body of a
// function literal starts at depth 0. An else-if has the depth of its if.
func nesting(n ast.Node) (deepest int, at ast.Node) {
	at = n
	ast.Inspect(n, func(child ast.Node) bool {
		if child == nil || child == n {
			return true
		}
		var deep int
		var where ast.Node
		switch c := child.(type) {
		case *ast.IfStmt:
			deep, where = nesting(c.Body)
			deep++
			if c.Else != nil {
				elseDeep, elseAt := nesting(c.Else)
				if _, chained := c.Else.(*ast.IfStmt); chained || c.Else != nil {
					elseDeep++
				}
				if elseDeep > deep {
					deep, where = elseDeep, elseAt
				}
			}
		case *ast.ForStmt:
			deep, where = nesting(c.Body)
			deep++
		case *ast.RangeStmt:
			deep, where = nesting(c.Body)
			deep++
		case *ast.SwitchStmt:
			deep, where = nesting(c.Body)
			deep++
		case *ast.TypeSwitchStmt:
			deep, where = nesting(c.Body)
			deep++
		case *ast.SelectStmt:
			deep, where = nesting(c.Body)
			deep++
		case *ast.FuncLit:
			deep, where = nesting(c.Body)
		default:
			return true
		}
		if deep > deepest {
			deepest, at = deep, where
		}
		return false
	})
	return deepest, at
}
