package catalog

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

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
