package definition

import (
	"context"
	"reflect"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// TestWildcardOrder checks that a wildcard of a printer column selects the members of an object in the order of
// their keys. The result is the same in every run (PRN-002).
func TestWildcardOrder(t *testing.T) {
	tree := object.Tree{"spec": object.Tree{
		"m": object.Tree{"c": "3", "a": "1", "b": "2"},
		"n": object.Tree{
			"z": object.Tree{"v": "z"}, "a": object.Tree{"w": "none"}, "k": object.Tree{"v": "k"}, "b": nil,
		},
		"l": []any{object.Tree{"b": "y", "a": "x"}, object.Tree{"a": "w"}},
		"e": object.Tree{},
	}}
	for path, want := range map[string]any{
		".spec.m.*": "1", ".spec.m[*]": nil, ".spec.n.*.v": "k", ".spec.l[*].*": "x", ".spec.*.v": nil,
		".spec.e.*": nil, ".spec.*.*.w": "none", ".spec.none.*": nil,
	} {
		cell := newPathCell(printerColumn{name: "C", typ: "string", jsonPath: path})
		for range 20 {
			if got := cell.value(tree); got != want {
				t.Fatalf("%s: got %v, want %v", path, got, want)
			}
		}
	}
}

// TestColumnsAgainstUpstream checks that columns have upstream's cells for many paths and values.
//
// CRD-064
func TestColumnsAgainstUpstream(t *testing.T) {
	paths := []string{
		".metadata.name", ".spec.a", ".spec.missing", ".spec.list", ".spec.list.x", ".spec.list[0]",
		".spec.list[*].x", ".spec.map",
		".spec.null", ".spec.float", ".spec.bool", ".spec.date", ".spec.bad-date", `.metadata.annotations.a\.b/c`,
		".spec.empty", ".spec.when",
		`.status.conditions[?(@.type=="Ready")].status`, `.status.conditions[?(@.type=='None')].status`,
		".spec.list[-1:]", ".spec..x", ".spec.big", ".",
		".spec.a b", `.spec['a']`, ".spec.list[7]", ".spec.list[1:2].x", "..a", ".spec.{a}", ".spec.a.", ".spec.Ä",
	}
	broken := []string{".spec[", ".spec.list[?(@.x", ".spec.list[]", ".spec.list[a]", ".spec.list[?(x)]"}
	metadata := object.Tree{"name": "n", "annotations": object.Tree{"a.b/c": "v"}}
	obj := object.Tree{"metadata": metadata, "spec": object.Tree{
		"a": "text", "list": []any{object.Tree{"x": "y"}, object.Tree{"x": int64(2)}, "z"},
		"map": object.Tree{"k": "v", "n": int64(1)}, "null": nil, "Ä": "ö",
		"float": 1.5, "bool": true, "date": "2026-01-01T00:00:00Z", "bad-date": "never", "empty": "",
		"when": int64(5), "big": int64(9007199254740993),
	}, "status": object.Tree{"conditions": []any{object.Tree{"type": "Ready", "status": "True"}}}}
	for _, typ := range []string{"string", "integer", "number", "boolean", "date"} {
		for _, path := range append(paths, broken...) {
			after := printerColumn{name: "After", typ: "string", jsonPath: ".spec.a"}
			got := compileColumns([]printerColumn{{name: "C", typ: typ, jsonPath: path}, after})
			table, err := tableconvertor.New([]apiextensionsv1.CustomResourceColumnDefinition{
				{Name: "C", Type: typ, JSONPath: path}, {Name: "After", Type: "string", JSONPath: ".spec.a"},
			})
			want, convertErr := table.ConvertToTable(context.Background(), &unstructured.Unstructured{Object: obj}, nil)
			if convertErr != nil {
				t.Fatal(convertErr)
			}
			if len(got) != len(want.ColumnDefinitions) {
				t.Errorf("%s %s: got %d columns, want upstream's %d (%v)",
					typ, path, len(got), len(want.ColumnDefinitions), err)
				continue
			}
			for i, col := range got {
				definition := metav1.TableColumnDefinition{
					Name: col.Name, Type: col.Type, Format: col.Format,
					Description: col.Description, Priority: col.Priority,
				}
				if definition != want.ColumnDefinitions[i] {
					t.Errorf("got definition %+v, want upstream's %+v", definition, want.ColumnDefinitions[i])
				}
				if typ == "date" && i == 1 {
					continue // an age, which the server computes for each response
				}
				if got := cell(&col, obj); !reflect.DeepEqual(got, want.Rows[0].Cells[i]) {
					t.Errorf("%s %s: got cell %#v, want upstream's %#v", typ, path, got, want.Rows[0].Cells[i])
				}
			}
		}
	}
}

// cell returns the cell of a column for t.
func cell(c *resource.Column, t object.Tree) any {
	if c.Cell != nil {
		return c.Cell(t)
	}
	var v any = t
	for _, name := range c.Path {
		m, _ := v.(object.Tree)
		next, ok := m[name]
		if !ok {
			return nil
		}
		v = next
	}
	return c.Value(v)
}
