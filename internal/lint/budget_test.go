package lint_test

import (
	"go/ast"
	"strings"
	"testing"
)

const (
	maxFields  = 30
	maxMethods = 8
	// maxPackage is the maximum number of lines of a package without tests. The packages in budgets may have more.
	maxPackage = 2000
)

// largeTypes lists the types that may have more fields or methods than others, with the reason.
var largeTypes = map[string]string{
	"apiserver.Config": "the values of the flags of kube-apiserver",
}

// budgets holds the maximum number of lines of the packages that may have more than maxPackage lines. Growth of such
// a package is a decision: raise its budget in the same commit, or split the package.
var budgets = map[string]int{
	"cluster/internal/runtime":     2300,
	"cmd/trellis":                  2300,
	"internal/api/openapi":         2810,
	"internal/crd/cel":             2700,
	"internal/engine/write":        2910,
	"internal/konnectivity/server": 2010,
	"internal/merge":               2650,
	"internal/object":              2560,
}

// TestTypesAreSmall checks that structs have at most 30 fields, and interfaces at most 8 methods.
func TestTypesAreSmall(t *testing.T) {
	unused := map[string]bool{}
	for name := range largeTypes {
		unused[name] = true
	}
	for _, s := range written(t) {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			declared, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			got, limit, what := 0, maxFields, "fields"
			switch typ := declared.Type.(type) {
			case *ast.StructType:
				got = typ.Fields.NumFields()
			case *ast.InterfaceType:
				got, limit, what = typ.Methods.NumFields(), maxMethods, "methods"
			}
			if got <= limit {
				return true
			}
			name := s.folder() + "." + declared.Name.Name
			delete(unused, name)
			if largeTypes[name] == "" {
				t.Errorf("%s:%d: %s has %d %s, more than %d", s.path, s.line(n.Pos()), name, got, what, limit)
			}
			return true
		})
	}
	for name := range unused {
		t.Errorf("%s is in largeTypes, but it is small or does not exist", name)
	}
}

// TestPackagesAreSmall checks that packages have at most 2,000 lines, or the number in budgets.
func TestPackagesAreSmall(t *testing.T) {
	lines := map[string]int{}
	for _, s := range written(t) {
		lines[s.folder()] += strings.Count(s.text, "\n")
	}
	for folder, n := range lines {
		limit, listed := budgets[folder]
		if !listed {
			limit = maxPackage
		}
		if n > limit {
			t.Errorf("%s has %d lines, more than %d", folder, n, limit)
		}
		if listed && n <= maxPackage {
			t.Errorf("%s has %d lines and needs no budget", folder, n)
		}
	}
	for folder := range budgets {
		if lines[folder] == 0 {
			t.Errorf("%s is in budgets, but it does not exist", folder)
		}
	}
}
