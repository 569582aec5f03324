package resource

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

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

func record(crd object.Tree, revision int64) *storage.Record {
	return &storage.Record{Key: CRDPrefix + object.Name(crd), Value: object.Pack(crd, 0).JSON(), Modified: revision}
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

// CRD-002, CRD-003, CRD-006, CRD-007, CRD-008, CRD-010, CRD-048, CRD-051
func TestDefinitionFromCRD(t *testing.T) {
	crd := versionsOf(crdTree("stable.example.com", "crontabs", "CronTab"),
		object.Tree{"name": "v1beta1", "served": true, "storage": false, "deprecated": true},
		object.Tree{"name": "v1alpha1", "served": true, "storage": false, "deprecated": true, "deprecationWarning": "go away"},
		object.Tree{"name": "v1", "served": true, "storage": true,
			"selectableFields": []any{object.Tree{"jsonPath": ".spec.color"}},
			"subresources": object.Tree{"status": object.Tree{}, "scale": object.Tree{
				"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}}},
		object.Tree{"name": "v2", "served": false, "storage": false})
	d := FromCRD(record(crd, 7))
	if d.Prefix != "/registry/stable.example.com/crontabs/" || d.Key("ns", "a") != d.Prefix+"ns/a" || !d.Namespaced || d.Custom.Revision != 7 {
		t.Errorf("definition %+v", d)
	}
	var order []string
	for _, v := range d.Versions {
		order = append(order, fmt.Sprint(v.GroupVersion.Version, v.Served))
	}
	if want := []string{"v2false", "v1true", "v1beta1true", "v1alpha1true"}; !slices.Equal(order, want) {
		t.Errorf("versions %v, want %v", order, want)
	}
	v1, beta, alpha := d.Versions[1], d.Versions[2], d.Versions[3]
	if d.Storage != v1 || !v1.Status || !reflect.DeepEqual(v1.Scale, &Scale{SpecReplicas: []string{"spec", "replicas"}, StatusReplicas: []string{"status", "replicas"}, LabelSelector: []string{"status", "selector"}}) {
		t.Errorf("v1 is %+v", v1)
	}
	if !reflect.DeepEqual(v1.SelectableFields, []SelectableField{{Name: "spec.color", Path: []string{"spec", "color"}}}) {
		t.Errorf("selectable fields %v", v1.SelectableFields)
	}
	if want := "stable.example.com/v1beta1 CronTab is deprecated; use stable.example.com/v1 CronTab"; beta.DeprecationWarning != want {
		t.Errorf("warning %q, want %q", beta.DeprecationWarning, want)
	}
	if alpha.DeprecationWarning != "go away" || v1.DeprecationWarning != "" || beta.Status {
		t.Error("the versions are mixed up")
	}
	if want := []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}; !slices.Equal(d.Verbs, want) {
		t.Errorf("verbs %v", d.Verbs)
	}
	if s, err := v1.Schema(); err != nil || s == nil || string(v1.OpenAPIV3Schema()) != `{"type":"object"}` {
		t.Errorf("schema %v %v %s", s, err, v1.OpenAPIV3Schema())
	}
}

// CRD-021: a version that names no columns has these two.
func TestDefaultColumns(t *testing.T) {
	d := FromCRD(record(crdTree("example.com", "oxen", "Ox"), 1))
	var got []string
	for _, c := range d.Storage.Columns {
		got = append(got, fmt.Sprint(c.Name, " ", c.Type, " ", c.Path, " ", c.Age))
	}
	if want := []string{"Name string [metadata name] false", "Age date [metadata creationTimestamp] true"}; !slices.Equal(got, want) {
		t.Errorf("columns %q, want %q", got, want)
	}
}

// CRD-010: in the URL stands the plural, however unlike the kind it is; nothing else stands for it.
func TestPluralIsTheSegment(t *testing.T) {
	c := newCatalog(nil).withRecords(slices.Values([]*storage.Record{record(crdTree("example.com", "oxen", "Ox"), 1)}))
	if c.Find("example.com", "v1", "oxen") == nil {
		t.Error("the plural is not served")
	}
	for _, other := range []string{"oxenx", "ox", "oxs", "oxes", "Oxen", "Ox", ""} {
		if c.Find("example.com", "v1", other) != nil {
			t.Errorf("%q is served", other)
		}
	}
}

// CRD-015, CRD-041: what is not established is known but not served; one that loses a contested name
// keeps those it was given.
func TestOnlyEstablishedIsServed(t *testing.T) {
	waiting := crdTree("example.com", "waits", "Wait")
	delete(waiting, "status")
	renamed := crdTree("example.com", "renames", "Rename")
	renamed["spec"].(object.Tree)["names"].(object.Tree)["singular"] = "contested"
	ending := crdTree("example.com", "ends", "End")
	object.EnsureMetadata(ending)["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	c := newCatalog(nil).withRecords(slices.Values([]*storage.Record{record(waiting, 1), record(renamed, 2), record(ending, 3)}))
	if c.Find("example.com", "v1", "waits") != nil || c.Definition("example.com", "waits") == nil {
		t.Error("a CRD that is not established is served, or not known")
	}
	if v := c.Find("example.com", "v1", "renames"); v == nil || v.Definition.Names.Singular != "renamesx" {
		t.Error("a contested name is in use")
	}
	if v := c.Find("example.com", "v1", "ends"); v == nil || !v.Definition.Custom.Terminating { // CRD-044
		t.Error("a terminating CRD is not served, or not known to be terminating")
	}
	if c.Revision() != 3 {
		t.Errorf("revision %d", c.Revision())
	}
}

// CRD-016, CRD-049: groups and versions in the order of discovery.
func TestGroups(t *testing.T) {
	builtin := func(group, version, plural string) *Definition {
		d := &Definition{Group: group, Names: Names{Plural: plural, Kind: plural}}
		d.Storage = &Version{Definition: d, GroupVersion: schema.GroupVersion{Group: group, Version: version}, Served: true}
		d.Versions = []*Version{d.Storage}
		return d
	}
	base := newCatalog([]*Definition{builtin("coordination.k8s.io", "v1", "leases"), builtin("", "v1", "pods"), builtin("events.k8s.io", "v1", "events")})
	c := base.withRecords(slices.Values([]*storage.Record{
		record(crdTree("z.example.com", "as", "A"), 1),
		record(versionsOf(crdTree("a.example.com", "bs", "B"),
			object.Tree{"name": "v1beta1", "served": true, "storage": true}, object.Tree{"name": "v2", "served": true, "storage": false}), 2),
		record(crdTree("a.example.com", "as", "A"), 3),
		record(crdTree("coordination.k8s.io", "leases", "Stolen"), 4),
	}))
	var names []string
	for g := range c.Groups() {
		names = append(names, g.Name)
		if g.Name != "a.example.com" {
			continue
		}
		if !slices.Equal(g.Versions, []string{"v2", "v1", "v1beta1"}) || g.Preferred != "v2" || len(g.Resources["v1"]) != 1 {
			t.Errorf("group %+v", g)
		}
	}
	if want := []string{"", "events.k8s.io", "coordination.k8s.io", "a.example.com", "z.example.com"}; !slices.Equal(names, want) {
		t.Errorf("groups %q, want %q", names, want)
	}
	if d := c.Definition("coordination.k8s.io", "leases"); d.Custom != nil {
		t.Error("a CRD has taken the place of a built-in kind")
	}
	var plurals []string
	for d := range c.Definitions() {
		plurals = append(plurals, d.Names.Plural+"."+d.Group)
	}
	if want := []string{"pods.", "as.a.example.com", "bs.a.example.com", "leases.coordination.k8s.io", "events.events.k8s.io", "as.z.example.com"}; !slices.Equal(plurals, want) {
		t.Errorf("definitions %v", plurals)
	}
	if len(slices.Collect(base.Groups())) != 3 {
		t.Error("the catalog before has changed")
	}
}

// A wildcard of a printer column takes the entries of an object in the order of their keys, and each time the same (PRN-002).
func TestWildcardsGoByKey(t *testing.T) {
	tree := object.Tree{"spec": object.Tree{
		"m": object.Tree{"c": "3", "a": "1", "b": "2"},
		"n": object.Tree{"z": object.Tree{"v": "z"}, "a": object.Tree{"w": "none"}, "k": object.Tree{"v": "k"}, "b": nil},
		"l": []any{object.Tree{"b": "y", "a": "x"}, object.Tree{"a": "w"}},
		"e": object.Tree{},
	}}
	for path, want := range map[string]any{
		".spec.m.*": "1", ".spec.m[*]": nil, ".spec.n.*.v": "k", ".spec.l[*].*": "x", ".spec.*.v": nil, ".spec.e.*": nil, ".spec.*.*.w": "none", ".spec.none.*": nil,
	} {
		cell := newPathCell(printerColumn{name: "C", typ: "string", jsonPath: path})
		for range 20 {
			if got := cell.value(tree); got != want {
				t.Fatalf("%s: %v, want %v", path, got, want)
			}
		}
	}
}

// CRD-064: columns show what upstream's show, for all sorts of paths and values.
func TestColumnsAgainstUpstream(t *testing.T) {
	paths := []string{
		".metadata.name", ".spec.a", ".spec.missing", ".spec.list", ".spec.list.x", ".spec.list[0]", ".spec.list[*].x", ".spec.map",
		".spec.null", ".spec.float", ".spec.bool", ".spec.date", ".spec.bad-date", `.metadata.annotations.a\.b/c`, ".spec.empty", ".spec.when",
		`.status.conditions[?(@.type=="Ready")].status`, `.status.conditions[?(@.type=='None')].status`, ".spec.list[-1:]", ".spec..x", ".spec.big", ".",
		".spec.a b", `.spec['a']`, ".spec.list[7]", ".spec.list[1:2].x", "..a", ".spec.{a}", ".spec.a.", ".spec.Ä",
	}
	broken := []string{".spec[", ".spec.list[?(@.x", ".spec.list[]", ".spec.list[a]", ".spec.list[?(x)]"}
	obj := object.Tree{"metadata": object.Tree{"name": "n", "annotations": object.Tree{"a.b/c": "v"}}, "spec": object.Tree{
		"a": "text", "list": []any{object.Tree{"x": "y"}, object.Tree{"x": int64(2)}, "z"}, "map": object.Tree{"k": "v", "n": int64(1)}, "null": nil, "Ä": "ö",
		"float": 1.5, "bool": true, "date": "2026-01-01T00:00:00Z", "bad-date": "never", "empty": "", "when": int64(5), "big": int64(9007199254740993),
	}, "status": object.Tree{"conditions": []any{object.Tree{"type": "Ready", "status": "True"}}}}
	for _, typ := range []string{"string", "integer", "number", "boolean", "date"} {
		for _, path := range append(paths, broken...) {
			after := printerColumn{name: "After", typ: "string", jsonPath: ".spec.a"}
			ours := compileColumns([]printerColumn{{name: "C", typ: typ, jsonPath: path}, after})
			table, err := tableconvertor.New([]apiextensionsv1.CustomResourceColumnDefinition{{Name: "C", Type: typ, JSONPath: path}, {Name: "After", Type: "string", JSONPath: ".spec.a"}})
			want, convertErr := table.ConvertToTable(context.Background(), &unstructured.Unstructured{Object: obj}, nil)
			if convertErr != nil {
				t.Fatal(convertErr)
			}
			if len(ours) != len(want.ColumnDefinitions) {
				t.Errorf("%s %s: %d columns, upstream %d (%v)", typ, path, len(ours), len(want.ColumnDefinitions), err)
				continue
			}
			for i, col := range ours {
				head := metav1.TableColumnDefinition{Name: col.Name, Type: col.Type, Format: col.Format, Description: col.Description, Priority: col.Priority}
				if head != want.ColumnDefinitions[i] {
					t.Errorf("header %+v, upstream %+v", head, want.ColumnDefinitions[i])
				}
				if typ == "date" && i == 1 {
					continue // an age, which the server computes when it answers
				}
				if got := cell(&col, obj); !reflect.DeepEqual(got, want.Rows[0].Cells[i]) {
					t.Errorf("%s %s: cell %#v, upstream %#v", typ, path, got, want.Rows[0].Cells[i])
				}
			}
		}
	}
}

// cell is what a column shows of t.
func cell(c *Column, t object.Tree) any {
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
	f.Add([]byte(`{"spec":{"group":"g","names":{"plural":"p"},"versions":[{"storage":true,"additionalPrinterColumns":[{"jsonPath":".a["}],"schema":{"openAPIV3Schema":{"items":[}}]}}`))
	f.Fuzz(func(t *testing.T, js []byte) {
		tree, _, err := object.DecodeJSON(js)
		if err != nil {
			return
		}
		d := FromCRD(record(tree, 1))
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
