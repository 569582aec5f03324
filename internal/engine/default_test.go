package engine

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
)

// schemaWithDefaults returns a schema with defaults. It inserts the parameter more into the properties of spec.
func schemaWithDefaults(more string) string {
	return `{"type":"object","properties":{"spec":{"type":"object","properties":{` + more + `
"cronSpec":{"type":"string","default":"5 0 * * *"},"image":{"type":"string"},"replicas":{"type":"integer",
"default":1,"maximum":10},
"color":{"type":"string","default":"red"},
"foo":{"type":"string","default":"default"},"bar":{"type":"string","nullable":true,"default":"never"},
"baz":{"type":"string"},
"tags":{"type":"array","items":{"type":"string"},"x-kubernetes-list-type":"set"},
"ports":{"type":"array","items":{"type":"object","properties":{"port":{"type":"integer","default":80}}}},
"named":{"type":"object","additionalProperties":{"type":"object","properties":{"on":{"type":"boolean",
"default":true}}}}}},
"status":{"type":"object","default":{"phase":"new"},"properties":{"phase":{"type":"string"},
"replicas":{"type":"integer","minimum":0,"default":0}}}}}`
}

// newDefaultingFixture returns a fixture whose CronTabs have defaults at both versions.
func newDefaultingFixture(t *testing.T) *fixture {
	f := newFixture(t)
	f.writeCRD(cronTabs(schemaWithDefaults(""), schemaWithDefaults("")))
	return f
}

// storedTree returns the stored form of a CronTab.
func (f *fixture) storedTree(name string) object.Tree {
	f.Helper()
	rec := f.Store.Head().Get("/registry/stable.example.com/crontabs/default/" + name)
	if rec == nil {
		f.Fatalf("%s is not stored", name)
	}
	t, err := object.Unpack(rec.Value).Tree(0)
	if err != nil {
		f.Fatal(err)
	}
	return t
}

// TestCreateFillsInDefaults checks that a create stores and returns the defaults of missing fields. Present fields
// keep their values (DEF-002, DEF-003, DEF-004, DEF-006, DEF-007).
func TestCreateFillsInDefaults(t *testing.T) {
	f := newDefaultingFixture(t)
	o := f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"i","replicas":3,"ports":[{},`+
		`{"port":1}],"named":{"x":{},"y":{"on":false}}}}`)
	want := `{"bar":"never","color":"red","cronSpec":"5 0 * * *","foo":"default","image":"i",` +
		`"named":{"x":{"on":true},"y":{"on":false}},"ports":[{"port":80},{"port":1}],"replicas":3}`
	for source, got := range map[string]object.Tree{"returned": treeOf(t, o), "read": f.get(f.cron("a")),
		"stored": f.storedTree("a")} {
		equal(t, source, valueAt(got, "spec"), decode(t, want))
	}
	f.mustCreate(f.cron(""), `{"metadata":{"name":"b"}}`)
	equal(t, "spec of an object without one", f.get(f.cron("b"))["spec"], nil)
}

// TestCreateDropsNulls checks that a create drops nulls that the schema does not allow, and fills in defaults for
// them (DEF-016, DEF-017, DEF-018, DEF-019, DEF-020).
func TestCreateDropsNulls(t *testing.T) {
	f := newDefaultingFixture(t)
	o := f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"foo":null,"bar":null,"baz":null}}`)
	spec := valueAt(treeOf(t, o), "spec").(object.Tree)
	_, hasBar := spec["bar"]
	_, hasBaz := spec["baz"]
	equal(t, "spec", []any{spec["foo"], hasBar, spec["bar"], hasBaz}, []any{"default", true, nil, false})
	equal(t, "stored", f.storedTree("a")["spec"], spec)
}

// TestNullInListIsRejected checks that a null in a list is a validation error. The server does not drop it
// (DEF-022).
func TestNullInListIsRejected(t *testing.T) {
	f := newDefaultingFixture(t)
	_, err := f.create(f.cron(""), `{"metadata":{"name":"a"},"spec":{"tags":["a",null]}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "spec.tags[1]")
}

// TestNullOfRequiredField checks that a null for a required field is a validation error (DEF-023).
func TestNullOfRequiredField(t *testing.T) {
	f := newFixture(t)
	js := `{"type":"object","properties":{"spec":{"type":"object","required":["image"],` +
		`"properties":{"image":{"type":"string"}}}}}`
	f.writeCRD(cronTabs(js, js))
	_, err := f.create(f.cron(""), `{"metadata":{"name":"a"},"spec":{"image":null}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "spec.image: Required value")
}

// TestNewDefaultAppliesOnRead checks that get, list, selectors and watch show a new default immediately. The next
// update stores it, even if it changes nothing else (DEF-008, DEF-010, DEF-011).
func TestNewDefaultAppliesOnRead(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"i"}}`)
	f.writeCRD(cronTabs(schemaWithDefaults(""), schemaWithDefaults("")))
	equal(t, "read", valueAt(f.get(f.cron("a")), "spec.color"), "red")
	list := f.list(f.cron(""), read.ListOptions{Fields: fieldSelector(t, "spec.color=red")})
	equal(t, "selected", len(list.Items), 1)
	equal(t, "listed", valueAt(treeOf(t, list.Items[0]), "spec.replicas"), 1)
	yes := true
	watch := f.watch(f.cron(""), read.ListOptions{SendInitialEvents: &yes,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true})
	ev, err := watch.next()
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "watched", valueAt(treeOf(t, ev.Object), "spec.color"), "red")
	equal(t, "scaled", valueAt(f.get(subresource(f.cron("a"), "scale")), "spec.replicas"), 1)
	equal(t, "stored", f.storedTree("a")["spec"], object.Tree{"image": "i"})
	before := f.Store.Head().Revision()
	f.mustEdit(f.cron("a"), func(object.Tree) {})
	equal(t, "stored by an update", valueAt(f.storedTree("a"), "spec.color"), "red")
	if n := len(f.eventsAfter(before)); n != 1 {
		t.Errorf("got %d changes, want 1", n)
	}
	f.mustEdit(f.cron("a"), func(object.Tree) {})
	equal(t, "changes after the second update", len(f.eventsAfter(before)), 1)
}

// TestStatusWriteStoresDefaults checks that a write of the status also stores missing defaults (DEF-010).
func TestStatusWriteStoresDefaults(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"i"}}`)
	f.writeCRD(cronTabs(schemaWithDefaults(""), schemaWithDefaults("")))
	f.mustPatch(subresource(f.cron("a"), "status"), mergePatch, `{"status":{"phase":"done"}}`)
	equal(t, "stored", []any{valueAt(f.storedTree("a"), "spec.color"), valueAt(f.storedTree("a"), "status.phase")},
		[]any{"red", "done"})
}

// TestDefaultedStatus checks the defaults of a status after a create, which ignores the status. Reads show these
// defaults, but they are not stored (DEF-004).
func TestDefaultedStatus(t *testing.T) {
	f := newDefaultingFixture(t)
	o := f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"status":{"phase":"mine"}}`)
	equal(t, "returned", treeOf(t, o)["status"], object.Tree{"phase": "new", "replicas": 0})
	equal(t, "read", f.get(f.cron("a"))["status"], object.Tree{"phase": "new", "replicas": 0})
	equal(t, "stored", f.storedTree("a")["status"], nil)
	before := f.Store.Head().Revision()
	f.mustEdit(f.cron("a"), func(object.Tree) {})
	equal(t, "stored by an update", f.storedTree("a")["status"], object.Tree{"phase": "new", "replicas": 0})
	f.mustEdit(f.cron("a"), func(object.Tree) {})
	equal(t, "changes", len(f.eventsAfter(before)), 1)
}

// TestDefaultsOfTwoVersions checks that a request uses the defaults of its version. A read also uses the defaults
// of the storage version, but they are not stored (DEF-007, DEF-008).
func TestDefaultsOfTwoVersions(t *testing.T) {
	f := newFixture(t)
	only := func(name string) string {
		return strings.ReplaceAll(schemaWithDefaults(""), `"baz":{"type":"string"}`,
			fmt.Sprintf(`"baz":{"type":"string","default":%q},"%sOnly":{"type":"string","default":"x"}`, name, name))
	}
	f.writeCRD(cronTabs(only("v1"), only("v2")))
	v2 := f.target("stable.example.com", "v2", "crontabs", "default")
	o, err := f.create(v2, `{"metadata":{"name":"a"},"spec":{}}`)
	if err != nil {
		t.Fatal(err)
	}
	v2.Name = "a"
	returned, stored := treeOf(t, o), f.storedTree("a")
	equal(t, "returned", []any{valueAt(returned, "spec.baz"), valueAt(returned, "spec.v1Only"),
		valueAt(returned, "spec.v2Only")}, []any{"v2", nil, nil})
	equal(t, "read", f.get(v2)["spec"], returned["spec"])
	equal(t, "stored", []any{stored["apiVersion"], valueAt(stored, "spec.baz"), valueAt(stored, "spec.v1Only"),
		valueAt(stored, "spec.v2Only")}, []any{"stable.example.com/v1", "v2", nil, nil})
	equal(t, "read at the storage version", []any{valueAt(f.get(f.cron("a")), "spec.baz"),
		valueAt(f.get(f.cron("a")), "spec.v1Only")}, []any{"v2", "x"})
}

// TestNewDefaultOfStorageVersion checks a default that only the storage version specifies. Reads at another version
// show it if that version has the field (DEF-008).
func TestNewDefaultOfStorageVersion(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"i"}}`)
	v2 := f.target("stable.example.com", "v2", "crontabs", "default")
	v2.Name = "a"
	equal(t, "before", valueAt(f.get(v2), "spec.color"), nil)
	f.writeCRD(cronTabs(schemaWithDefaults(""), cronTabSchema))
	v2 = f.target("stable.example.com", "v2", "crontabs", "default")
	v2.Name = "a"
	equal(t, "after", valueAt(f.get(v2), "spec.color"), "red")
}

// TestDefaultsInManagedFields checks that the field manager of a create owns the defaults. The field manager of an
// apply does not own them (DEF-024).
func TestDefaultsInManagedFields(t *testing.T) {
	f := newDefaultingFixture(t)
	owned := func(o record.Object) string {
		entries, _ := valueAt(treeOf(t, o), "metadata.managedFields").([]any)
		return string(object.AppendJSON(nil, entries))
	}
	if got := owned(f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"i"}}`)); !strings.Contains(got,
		`"f:color":{}`) {
		t.Errorf("got managedFields %s, want the default of color", got)
	}
	o, err := f.patch(f.cron("b"), applyPatch,
		`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"b"},"spec":{"image":"i"}}`)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "applied", []any{valueAt(treeOf(t, o), "spec.color"), valueAt(f.storedTree("b"), "spec.color")},
		[]any{"red", "red"})
	if got := owned(o); strings.Contains(got, `"f:color"`) || !strings.Contains(got, `"f:image":{}`) {
		t.Errorf("got managedFields %s, want image without the default of color", got)
	}
}

// TestRepeatedWritesChangeNothing checks that a repeated apply changes nothing. The same is true for the patch that
// kubectl apply sends for an unchanged manifest (DEF-025).
func TestRepeatedWritesChangeNothing(t *testing.T) {
	f := newDefaultingFixture(t)
	config := `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a"},"spec":{"image":"i",` +
		`"ports":[{}]}}`
	f.mustPatch(f.cron("a"), applyPatch, config)
	f.mustPatch(f.cron("a"), mergePatch, `{}`) // stores the defaults of the status, which the create ignored
	before := f.Store.Head().Revision()
	f.mustPatch(f.cron("a"), applyPatch, config)
	f.mustPatch(f.cron("a"), mergePatch, `{}`)
	f.mustPatch(f.cron("a"), mergePatch, `{"spec":{"image":"i"}}`)
	equal(t, "changes", len(f.eventsAfter(before)), 0)
	got := f.mustPatch(f.cron("a"), mergePatch, `{"spec":{"color":null,"replicas":2}}`)
	equal(t, "after the removal of a field", []any{valueAt(got, "spec.color"), valueAt(got, "spec.replicas")},
		[]any{"red", 2})
}

// TestDryRunShowsDefaults checks that a dry run of a create returns the defaults (DEF-026).
func TestDryRunShowsDefaults(t *testing.T) {
	f := newDefaultingFixture(t)
	f.caller.DryRun = true
	o := f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{}}`)
	equal(t, "created", []any{valueAt(treeOf(t, o), "spec.color"), valueAt(treeOf(t, o), "status.phase")},
		[]any{"red", "new"})
}

// TestScaleCreatesSpec checks that a write to /scale can create the spec, and that the spec then gets its defaults
// on read (DEF-004).
func TestScaleCreatesSpec(t *testing.T) {
	f := newDefaultingFixture(t)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"}}`)
	f.mustPatch(subresource(f.cron("a"), "scale"), mergePatch, `{"spec":{"replicas":3}}`)
	equal(t, "read", []any{valueAt(f.get(f.cron("a")), "spec.replicas"), valueAt(f.get(f.cron("a")), "spec.color")},
		[]any{3, "red"})
	equal(t, "stored", f.storedTree("a")["spec"], object.Tree{"replicas": 3})
}

// TestRatchetingOfEveryVerb checks that every verb rejects new values that violate the schema, and accepts such
// values if they are unchanged (VAL-018, VAL-029, VAL-030, VAL-166).
func TestRatchetingOfEveryVerb(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"replicas":15,"image":"i"}}`)
	strict := strings.ReplaceAll(schemaWithDefaults(""), `"image":{"type":"string"}`,
		`"image":{"type":"string","maxLength":3}`)
	f.writeCRD(cronTabs(strict, strict))
	_, err := f.create(f.cron(""), `{"metadata":{"name":"b"},"spec":{"replicas":15}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "spec.replicas in body should be less than or equal to 10")
	f.mustEdit(f.cron("a"), func(tree object.Tree) { set(tree, "spec.image", "j") })
	f.mustPatch(f.cron("a"), mergePatch, `{"spec":{"image":"k"}}`)
	f.mustPatch(f.cron("a"), applyPatch,
		`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a"},"spec":{"baz":"z"}}`)
	f.mustPatch(subresource(f.cron("a"), "status"), mergePatch, `{"status":{"phase":"x"}}`)
	_, err = f.edit(f.cron("a"), func(tree object.Tree) { set(tree, "spec.replicas", int64(16)) })
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "less than or equal to 10")
	_, err = f.patch(f.cron("a"), mergePatch, `{"spec":{"image":"long"}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "spec.image: Too long")
	_, err = f.patch(f.cron("a"), applyPatch,
		`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a"},"spec":{"baz":"z",`+
			`"image":"long"}}`)
	f.expectStatus(err, 409, metav1.StatusReasonConflict, "")
	_, _, err = f.Patch(f.ctx, f.cron("a"), verb.Patch{Type: applyPatch, Force: true,
		Data: []byte(`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a"},` +
			`"spec":{"image":"long"}}`)}, f.caller)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "spec.image: Too long")
	_, err = f.patch(subresource(f.cron("a"), "status"), mergePatch, `{"status":{"phase":7}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "status.phase")
	_, err = f.patch(subresource(f.cron("a"), "scale"), mergePatch, `{"spec":{"replicas":17}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "less than or equal to 10")
	_, err = f.patch(f.cron("a"), jsonPatch, `[{"op":"add","path":"/spec/image","value":"long"}]`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "spec.image: Too long")

	f.caller.DryRun = true
	_, err = f.create(f.cron(""), `{"metadata":{"name":"b"},"spec":{"replicas":15}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "less than or equal to 10")
	_, err = f.edit(f.cron("a"), func(tree object.Tree) { set(tree, "spec.replicas", int64(16)) })
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "less than or equal to 10")
	_, err = f.patch(f.cron("a"), mergePatch, `{"spec":{"image":"long"}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "spec.image: Too long")
}

// TestDuplicatesInSet checks that a create rejects repeated items of a set, and so does an update that changes the
// list. An update that leaves the list unchanged is accepted. A change of the finalizers and a deletion are
// accepted too (VAL-035).
func TestDuplicatesInSet(t *testing.T) {
	f := newFixture(t)
	loose := strings.ReplaceAll(schemaWithDefaults(""), `,"x-kubernetes-list-type":"set"`, "")
	f.writeCRD(cronTabs(loose, loose))
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"tags":["x","x"]}}`)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"b"},"spec":{"tags":["x"]}}`)
	f.writeCRD(cronTabs(schemaWithDefaults(""), schemaWithDefaults("")))
	_, err := f.create(f.cron(""), `{"metadata":{"name":"c"},"spec":{"tags":["x","y","x"]}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, `spec.tags[2]: Duplicate value: "x"`)
	f.mustPatch(f.cron("a"), mergePatch, `{"spec":{"image":"i"}}`)
	_, err = f.patch(f.cron("a"), mergePatch, `{"spec":{"tags":["x","x","y"]}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, `spec.tags[1]: Duplicate value: "x"`)
	f.mustPatch(f.cron("a"), mergePatch, `{"metadata":{"finalizers":["example.com/a"]}}`)
	if _, _, err := f.Delete(f.ctx, f.cron("a"), metav1.DeleteOptions{}, f.caller); err != nil {
		t.Fatal(err)
	}
	f.mustPatch(f.cron("a"), mergePatch, `{"metadata":{"finalizers":null}}`)
	_, err = f.patch(f.cron("b"), mergePatch, `{"spec":{"tags":["x","x"]}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, `spec.tags[1]: Duplicate value: "x"`)
}

// TestEmbeddedResourceIsValidated checks the validation of an embedded resource, and the normalization of its
// metadata (SCH-045).
func TestEmbeddedResourceIsValidated(t *testing.T) {
	f := newFixture(t)
	js := schemaWithDefaults(`"template":{"type":"object","x-kubernetes-embedded-resource":true,` +
		`"x-kubernetes-preserve-unknown-fields":true},`)
	f.writeCRD(cronTabs(js, js))
	_, err := f.create(f.cron(""), `{"metadata":{"name":"a"},"spec":{"template":{"kind":"Pod",`+
		`"metadata":{"labels":{"a b":"c"}}}}}`)
	status := f.expectStatus(err, 422, metav1.StatusReasonInvalid, "spec.template.apiVersion: Required value")
	if !strings.Contains(status.Message, "spec.template.metadata.labels") {
		t.Errorf("got message %q, want it to name the labels too", status.Message)
	}
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"template":{"apiVersion":"v1","kind":"Pod",`+
		`"spec":{"x":null}}}}`)
	const head = "apiVersion: stable.example.com/v1\nkind: CronTab\nmetadata: {name: b}\nspec: {template: " +
		"{apiVersion: v1, kind: Pod, metadata: "
	got := f.mustPatch(f.cron("b"), applyPatch, head+"{labels: {a: null}, annotations: null}}}")
	equal(t, "applied", valueAt(got, "spec.template.metadata"), map[string]any{"labels": map[string]any{"a": ""}})
	_, err = f.patch(f.cron("b"), applyPatch, head+"{creationTimestamp: nonsense}}}")
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "spec.template.metadata: Invalid value")
}

// TestPreserveUnknownFields checks that the server prunes nothing for a legacy CRD with preserveUnknownFields. It
// still validates the objects (SCH-024, SCH-026).
func TestPreserveUnknownFields(t *testing.T) {
	f := newFixture(t)
	js := `{"properties":{"spec":{"properties":{"n":{"type":"integer"}}}}}`
	f.writeCRD(strings.Replace(cronTabs(js, js), `"scope":`, `"preserveUnknownFields":true,"scope":`, 1))
	o := f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"more":{"x":null},"spec":{"n":1,"m":null}}`)
	equal(t, "unknown field", treeOf(t, o)["more"], object.Tree{"x": nil})
	_, err := f.create(f.cron(""), `{"metadata":{"name":"b"},"spec":{"n":"one"}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "spec.n in body must be of type integer")
	structural := `{"type":"object","properties":{"spec":{"type":"object","properties":{"n":{"type":"integer"}}}}}`
	f.writeCRD(strings.Replace(cronTabs(structural, structural), `"scope":`, `"preserveUnknownFields":true,"scope":`,
		1))
	o = f.mustCreate(f.cron(""), `{"metadata":{"name":"b"},"more":1}`)
	equal(t, "unknown field under a structural schema", []any{treeOf(t, o)["more"], f.get(f.cron("a"))["more"]},
		[]any{int64(1), object.Tree{"x": nil}})
	f.writeCRD(cronTabs(structural, structural)) // the same schemas, but now unknown fields are pruned
	equal(t, "pruned on read", []any{f.get(f.cron("a"))["more"], f.get(f.cron("b"))["more"]}, []any{nil, nil})
	_, err = f.create(f.cron(""), `{"metadata":{"name":"c"},"more":1}`)
	f.expectStatus(err, 400, metav1.StatusReasonBadRequest, `unknown field "more"`)
	f.writeCRD(cronTabs(schemaWithDefaults(""), schemaWithDefaults("")))
	got := f.get(f.cron("a"))
	equal(t, "defaulted", []any{got["more"], valueAt(got, "spec.color")}, []any{nil, "red"})
}
