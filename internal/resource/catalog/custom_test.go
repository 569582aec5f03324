package catalog

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

func record(crd object.Tree, revision int64) *storage.Record {
	return &storage.Record{Key: definition.CRDPrefix + object.Name(crd), Value: object.Pack(crd, 0).JSON(),
		Modified: revision}
}

func versionsOf(crd object.Tree, versions ...object.Tree) object.Tree {
	list := make([]any, len(versions))
	for i, v := range versions {
		v["schema"] = object.Tree{"openAPIV3Schema": object.Tree{"type": "object"}}
		list[i] = v
	}
	crd["spec"].(object.Tree)["versions"] = list
	return crd
}

// TestDefinitionFromCRD checks all parts of a Definition that are compiled from a CRD.
//
// CRD-002, CRD-003, CRD-006, CRD-007, CRD-008, CRD-010, CRD-048, CRD-051
func TestDefinitionFromCRD(t *testing.T) {
	crd := versionsOf(crdTree("stable.example.com", "crontabs", "CronTab"),
		object.Tree{"name": "v1beta1", "served": true, "storage": false, "deprecated": true},
		object.Tree{
			"name": "v1alpha1", "served": true, "storage": false, "deprecated": true,
			"deprecationWarning": "go away",
		},
		object.Tree{"name": "v1", "served": true, "storage": true,
			"selectableFields": []any{object.Tree{"jsonPath": ".spec.color"}},
			"subresources": object.Tree{"status": object.Tree{}, "scale": object.Tree{
				"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
				"labelSelectorPath": ".status.selector"}}},
		object.Tree{"name": "v2", "served": false, "storage": false})
	d := definition.FromCRD(record(crd, 7))
	if d.Prefix != "/registry/stable.example.com/crontabs/" || d.Key("ns", "a") != d.Prefix+"ns/a" ||
		!d.Namespaced || d.Custom.Revision != 7 {
		t.Errorf("got definition %+v", d)
	}
	var order []string
	for _, v := range d.Versions {
		order = append(order, fmt.Sprint(v.GroupVersion.Version, v.Served))
	}
	if want := []string{"v2false", "v1true", "v1beta1true", "v1alpha1true"}; !slices.Equal(order, want) {
		t.Errorf("got versions %v, want %v", order, want)
	}
	v1, beta, alpha := d.Versions[1], d.Versions[2], d.Versions[3]
	scale := &resource.Scale{
		SpecReplicas: []string{"spec", "replicas"}, StatusReplicas: []string{"status", "replicas"},
		LabelSelector: []string{"status", "selector"}, ByPath: true,
	}
	if d.Storage != v1 || !v1.Status || !reflect.DeepEqual(v1.Scale, scale) {
		t.Errorf("got v1 %+v", v1)
	}
	fields := []resource.SelectableField{{Name: "spec.color", Path: []string{"spec", "color"}}}
	if !reflect.DeepEqual(v1.SelectableFields, fields) {
		t.Errorf("got selectable fields %v", v1.SelectableFields)
	}
	want := "stable.example.com/v1beta1 CronTab is deprecated; use stable.example.com/v1 CronTab"
	if beta.DeprecationWarning != want {
		t.Errorf("got warning %q, want %q", beta.DeprecationWarning, want)
	}
	if alpha.DeprecationWarning != "go away" || v1.DeprecationWarning != "" || beta.Status {
		t.Error("properties belong to the wrong version")
	}
	verbs := []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	if !slices.Equal(d.Verbs, verbs) {
		t.Errorf("got verbs %v, want %v", d.Verbs, verbs)
	}
	if s, err := v1.Schema(); err != nil || s == nil || string(v1.OpenAPIV3Schema()) != `{"type":"object"}` {
		t.Errorf("got schema %v, error %v, OpenAPI schema %s", s, err, v1.OpenAPIV3Schema())
	}
}

// TestDefaultColumns checks the columns of a version that specifies no columns.
//
// CRD-021
func TestDefaultColumns(t *testing.T) {
	d := definition.FromCRD(record(crdTree("example.com", "oxen", "Ox"), 1))
	var got []string
	for _, c := range d.Storage.Columns {
		got = append(got, fmt.Sprint(c.Name, " ", c.Type, " ", c.Path, " ", c.Age))
	}
	want := []string{"Name string [metadata name] false", "Age date [metadata creationTimestamp] true"}
	if !slices.Equal(got, want) {
		t.Errorf("got columns %q, want %q", got, want)
	}
}

// TestPluralIsPathSegment checks that the path segment of a kind is its plural, even if the plural is unlike the
// kind, and nothing else.
//
// CRD-010
func TestPluralIsPathSegment(t *testing.T) {
	oxen := record(crdTree("example.com", "oxen", "Ox"), 1)
	c := newCatalog(nil).withRecords(slices.Values([]*storage.Record{oxen}))
	if c.Find("example.com", "v1", "oxen") == nil {
		t.Error("the plural is not served")
	}
	for _, other := range []string{"oxenx", "ox", "oxs", "oxes", "Oxen", "Ox", ""} {
		if c.Find("example.com", "v1", other) != nil {
			t.Errorf("%q is served", other)
		}
	}
}

// TestOnlyEstablishedIsServed checks that a CRD that is not established is known but not served. A CRD that
// requests a name in use keeps its accepted names.
//
// CRD-015, CRD-041
func TestOnlyEstablishedIsServed(t *testing.T) {
	waiting := crdTree("example.com", "waits", "Wait")
	delete(waiting, "status")
	renamed := crdTree("example.com", "renames", "Rename")
	renamed["spec"].(object.Tree)["names"].(object.Tree)["singular"] = "contested"
	ending := crdTree("example.com", "ends", "End")
	object.EnsureMetadata(ending)["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	records := []*storage.Record{record(waiting, 1), record(renamed, 2), record(ending, 3)}
	c := newCatalog(nil).withRecords(slices.Values(records))
	if c.Find("example.com", "v1", "waits") != nil || c.Definition("example.com", "waits") == nil {
		t.Error("a CRD that is not established is served, or not known")
	}
	if v := c.Find("example.com", "v1", "renames"); v == nil || v.Definition.Names.Singular != "renamesx" {
		t.Error("the kind is not served or has a name that is not accepted")
	}
	if v := c.Find("example.com", "v1", "ends"); v == nil || !v.Definition.Terminating { // CRD-044
		t.Error("a terminating CRD is not served, or not known to be terminating")
	}
	if c.Revision() != 3 {
		t.Errorf("got revision %d, want 3", c.Revision())
	}
}

// TestGroups checks the order of groups and versions in discovery.
//
// CRD-016, CRD-049
func TestGroups(t *testing.T) {
	builtin := func(group, version, plural string) *resource.Definition {
		d := &resource.Definition{Group: group, Names: resource.Names{Plural: plural, Kind: plural}}
		d.Storage = &resource.Version{
			Definition: d, GroupVersion: schema.GroupVersion{Group: group, Version: version}, Served: true,
		}
		d.Versions = []*resource.Version{d.Storage}
		return d
	}
	base := newCatalog([]*resource.Definition{
		builtin("coordination.k8s.io", "v1", "leases"),
		builtin("", "v1", "pods"),
		builtin("events.k8s.io", "v1", "events"),
	})
	c := base.withRecords(slices.Values([]*storage.Record{
		record(crdTree("z.example.com", "as", "A"), 1),
		record(versionsOf(crdTree("a.example.com", "bs", "B"),
			object.Tree{"name": "v1beta1", "served": true, "storage": true},
			object.Tree{"name": "v2", "served": true, "storage": false}), 2),
		record(crdTree("a.example.com", "as", "A"), 3),
		record(crdTree("coordination.k8s.io", "leases", "Stolen"), 4),
	}))
	var names []string
	for g := range c.Groups() {
		names = append(names, g.Name)
		if g.Name != "a.example.com" {
			continue
		}
		if !slices.Equal(g.Versions, []string{"v2", "v1", "v1beta1"}) ||
			g.Preferred != "v2" || len(g.Resources["v1"]) != 1 {
			t.Errorf("got group %+v", g)
		}
	}
	want := []string{"", "events.k8s.io", "coordination.k8s.io", "a.example.com", "z.example.com"}
	if !slices.Equal(names, want) {
		t.Errorf("got groups %q, want %q", names, want)
	}
	if d := c.Definition("coordination.k8s.io", "leases"); d.Custom != nil {
		t.Error("a CRD replaced a built-in kind")
	}
	var plurals []string
	for d := range c.Definitions() {
		plurals = append(plurals, d.Names.Plural+"."+d.Group)
	}
	want = []string{
		"pods.", "as.a.example.com", "bs.a.example.com", "leases.coordination.k8s.io", "events.events.k8s.io",
		"as.z.example.com",
	}
	if !slices.Equal(plurals, want) {
		t.Errorf("got definitions %v, want %v", plurals, want)
	}
	if len(slices.Collect(base.Groups())) != 3 {
		t.Error("the previous catalog has changed")
	}
}

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
		cell := definition.NewPathCell(definition.PrinterColumn{Name: "C", Typ: "string", JsonPath: path})
		for range 20 {
			if got := cell.Value(tree); got != want {
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
			after := definition.PrinterColumn{Name: "After", Typ: "string", JsonPath: ".spec.a"}
			got := definition.CompileColumns([]definition.PrinterColumn{{Name: "C", Typ: typ, JsonPath: path}, after})
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

func FuzzFromCRD(f *testing.F) {
	f.Add(object.AppendJSON(nil, crdTree("example.com", "foos", "Foo")))
	f.Add([]byte(`{"spec":{"group":"g","names":{"plural":"p"},"versions":[{"storage":true,` +
		`"additionalPrinterColumns":[{"jsonPath":".a["}],"schema":{"openAPIV3Schema":{"items":[}}]}}`))
	f.Fuzz(func(t *testing.T, js []byte) {
		tree, _, err := object.DecodeJSON(js)
		if err != nil {
			return
		}
		d := definition.FromCRD(record(tree, 1))
		if d == nil {
			return
		}
		for _, v := range d.Versions {
			if s, err := v.Schema(); err == nil {
				s.Prune(object.Copy(tree))
				_, _ = s.Parseable()
			}
			for i := range v.Columns {
				if c := v.Columns[i].Cell; c != nil {
					c(tree)
				}
			}
		}
	})
}
