package engine

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
)

// defaulting is a schema with defaults; more stands among the properties of spec.
func defaulting(more string) string {
	return `{"type":"object","properties":{"spec":{"type":"object","properties":{` + more + `
"cronSpec":{"type":"string","default":"5 0 * * *"},"image":{"type":"string"},"replicas":{"type":"integer","default":1,"maximum":10},
"color":{"type":"string","default":"red"},
"foo":{"type":"string","default":"default"},"bar":{"type":"string","nullable":true,"default":"never"},"baz":{"type":"string"},
"tags":{"type":"array","items":{"type":"string"},"x-kubernetes-list-type":"set"},
"ports":{"type":"array","items":{"type":"object","properties":{"port":{"type":"integer","default":80}}}},
"named":{"type":"object","additionalProperties":{"type":"object","properties":{"on":{"type":"boolean","default":true}}}}}},
"status":{"type":"object","default":{"phase":"new"},"properties":{"phase":{"type":"string"},"replicas":{"type":"integer","minimum":0,"default":0}}}}}`
}

func defaultingWorld(t *testing.T) *world {
	w := newWorld(t)
	w.writeCRD(cronTabs(defaulting(""), defaulting("")))
	return w
}

// raw is an object as it is stored.
func (w *world) raw(name string) object.Tree {
	w.Helper()
	rec := w.Store.Head().Get("/registry/stable.example.com/crontabs/default/" + name)
	if rec == nil {
		w.Fatalf("%s is not stored", name)
	}
	t, err := object.Unpack(rec.Value).Tree(0)
	if err != nil {
		w.Fatal(err)
	}
	return t
}

// DEF-002, DEF-003, DEF-004, DEF-006, DEF-007: a create stores and returns what the client left out, and nothing
// that it did not.
func TestCreateFillsInDefaults(t *testing.T) {
	w := defaultingWorld(t)
	o := w.mustCreate(w.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"i","replicas":3,"ports":[{},{"port":1}],"named":{"x":{},"y":{"on":false}}}}`)
	want := `{"bar":"never","color":"red","cronSpec":"5 0 * * *","foo":"default","image":"i","named":{"x":{"on":true},"y":{"on":false}},"ports":[{"port":80},{"port":1}],"replicas":3}`
	for what, got := range map[string]object.Tree{"answered": treeOf(t, o), "read": w.get(w.cron("a")), "stored": w.raw("a")} {
		equal(t, what, valueAt(got, "spec"), decode(t, want))
	}
	w.mustCreate(w.cron(""), `{"metadata":{"name":"b"}}`)
	equal(t, "below nothing", w.get(w.cron("b"))["spec"], nil)
}

// DEF-016, DEF-017, DEF-018, DEF-019, DEF-020: nulls go where they may not be, and defaults come in their place.
func TestCreateDropsNulls(t *testing.T) {
	w := defaultingWorld(t)
	o := w.mustCreate(w.cron(""), `{"metadata":{"name":"a"},"spec":{"foo":null,"bar":null,"baz":null}}`)
	spec := valueAt(treeOf(t, o), "spec").(object.Tree)
	_, hasBar := spec["bar"]
	_, hasBaz := spec["baz"]
	equal(t, "spec", []any{spec["foo"], hasBar, spec["bar"], hasBaz}, []any{"default", true, nil, false})
	equal(t, "stored", w.raw("a")["spec"], spec)
}

// DEF-022: a null in a list is not dropped.
func TestNullInListIsRefused(t *testing.T) {
	w := defaultingWorld(t)
	_, err := w.create(w.cron(""), `{"metadata":{"name":"a"},"spec":{"tags":["a",null]}}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, "spec.tags[1]")
}

// DEF-023
func TestNullOfRequiredField(t *testing.T) {
	w := newWorld(t)
	js := `{"type":"object","properties":{"spec":{"type":"object","required":["image"],"properties":{"image":{"type":"string"}}}}}`
	w.writeCRD(cronTabs(js, js))
	_, err := w.create(w.cron(""), `{"metadata":{"name":"a"},"spec":{"image":null}}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, "spec.image: Required value")
}

// DEF-008, DEF-010, DEF-011: a new default shows at once in get, list, selectors and watch, and is stored by the
// next update, even one that changes nothing else.
func TestNewDefaultShowsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"i"}}`)
	w.writeCRD(cronTabs(defaulting(""), defaulting("")))
	equal(t, "got", valueAt(w.get(w.cron("a")), "spec.color"), "red")
	list := w.list(w.cron(""), ListOptions{Fields: fieldSelector(t, "spec.color=red")})
	equal(t, "selected", len(list.Items), 1)
	equal(t, "listed", valueAt(treeOf(t, list.Items[0]), "spec.replicas"), 1)
	yes := true
	watch := w.watch(w.cron(""), ListOptions{SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true})
	ev, err := watch.next()
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "watched", valueAt(treeOf(t, ev.Object), "spec.color"), "red")
	equal(t, "scaled", valueAt(w.get(w.cron("a").sub("scale")), "spec.replicas"), 1)
	equal(t, "stored", w.raw("a")["spec"], object.Tree{"image": "i"})
	before := w.Store.Head().Revision()
	w.mustEdit(w.cron("a"), func(object.Tree) {})
	equal(t, "stored by an update", valueAt(w.raw("a"), "spec.color"), "red")
	if n := len(w.changes(before)); n != 1 {
		t.Errorf("%d changes", n)
	}
	w.mustEdit(w.cron("a"), func(object.Tree) {})
	equal(t, "the second update changes nothing", len(w.changes(before)), 1)
}

// DEF-010: a status write of an object whose defaults are not stored yet stores them.
func TestStatusWriteStoresDefaults(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"i"}}`)
	w.writeCRD(cronTabs(defaulting(""), defaulting("")))
	w.mustPatch(w.cron("a").sub("status"), merging, `{"status":{"phase":"done"}}`)
	equal(t, "stored", []any{valueAt(w.raw("a"), "spec.color"), valueAt(w.raw("a"), "status.phase")}, []any{"red", "done"})
}

// DEF-004: the status that a create may not set is filled in when it is read, and not stored.
func TestDefaultedStatus(t *testing.T) {
	w := defaultingWorld(t)
	o := w.mustCreate(w.cron(""), `{"metadata":{"name":"a"},"status":{"phase":"mine"}}`)
	equal(t, "answered", treeOf(t, o)["status"], object.Tree{"phase": "new", "replicas": 0})
	equal(t, "read", w.get(w.cron("a"))["status"], object.Tree{"phase": "new", "replicas": 0})
	equal(t, "stored", w.raw("a")["status"], nil)
	before := w.Store.Head().Revision()
	w.mustEdit(w.cron("a"), func(object.Tree) {})
	equal(t, "stored by an update", w.raw("a")["status"], object.Tree{"phase": "new", "replicas": 0})
	w.mustEdit(w.cron("a"), func(object.Tree) {})
	equal(t, "changes", len(w.changes(before)), 1)
}

// DEF-007, DEF-008: a request fills in the defaults of its own version; what is read has those of the storage version,
// which are not stored.
func TestDefaultsOfTwoVersions(t *testing.T) {
	w := newWorld(t)
	only := func(name string) string {
		return strings.ReplaceAll(defaulting(""), `"baz":{"type":"string"}`, fmt.Sprintf(`"baz":{"type":"string","default":%q},"%sOnly":{"type":"string","default":"x"}`, name, name))
	}
	w.writeCRD(cronTabs(only("v1"), only("v2")))
	v2 := w.at("stable.example.com", "v2", "crontabs", "default")
	o, err := w.create(v2, `{"metadata":{"name":"a"},"spec":{}}`)
	if err != nil {
		t.Fatal(err)
	}
	v2.Name = "a"
	answered, stored := treeOf(t, o), w.raw("a")
	equal(t, "answered", []any{valueAt(answered, "spec.baz"), valueAt(answered, "spec.v1Only"), valueAt(answered, "spec.v2Only")}, []any{"v2", nil, nil})
	equal(t, "read", w.get(v2)["spec"], answered["spec"])
	equal(t, "stored", []any{stored["apiVersion"], valueAt(stored, "spec.baz"), valueAt(stored, "spec.v1Only"), valueAt(stored, "spec.v2Only")}, []any{"stable.example.com/v1", "v2", nil, nil})
	equal(t, "read at the storage version", []any{valueAt(w.get(w.cron("a")), "spec.baz"), valueAt(w.get(w.cron("a")), "spec.v1Only")}, []any{"v2", "x"})
}

// DEF-008: a default that only the storage version has got shows at the other one, too, where it is known.
func TestNewDefaultOfStorageVersionShowsAtTheOther(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"i"}}`)
	v2 := w.at("stable.example.com", "v2", "crontabs", "default")
	v2.Name = "a"
	equal(t, "before", valueAt(w.get(v2), "spec.color"), nil)
	w.writeCRD(cronTabs(defaulting(""), cronTabSchema))
	v2 = w.at("stable.example.com", "v2", "crontabs", "default")
	v2.Name = "a"
	equal(t, "after", valueAt(w.get(v2), "spec.color"), "red")
}

// DEF-024: defaults belong to whoever created the object, but not to who applied.
func TestOwnersOfDefaults(t *testing.T) {
	w := defaultingWorld(t)
	owned := func(o Object) string {
		entries, _ := valueAt(treeOf(t, o), "metadata.managedFields").([]any)
		return string(object.AppendJSON(nil, entries))
	}
	if got := owned(w.mustCreate(w.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"i"}}`)); !strings.Contains(got, `"f:color":{}`) {
		t.Error(got)
	}
	o, err := w.patch(w.cron("b"), applying, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"b"},"spec":{"image":"i"}}`)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "applied", []any{valueAt(treeOf(t, o), "spec.color"), valueAt(w.raw("b"), "spec.color")}, []any{"red", "red"})
	if got := owned(o); strings.Contains(got, `"f:color"`) || !strings.Contains(got, `"f:image":{}`) {
		t.Error(got)
	}
}

// DEF-025: the same apply again, and the patch that kubectl apply sends for an unchanged manifest, change nothing.
func TestSameAgainChangesNothing(t *testing.T) {
	w := defaultingWorld(t)
	config := `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a"},"spec":{"image":"i","ports":[{}]}}`
	w.mustPatch(w.cron("a"), applying, config)
	w.mustPatch(w.cron("a"), merging, `{}`) // stores the status that a create may not set
	before := w.Store.Head().Revision()
	w.mustPatch(w.cron("a"), applying, config)
	w.mustPatch(w.cron("a"), merging, `{}`)
	w.mustPatch(w.cron("a"), merging, `{"spec":{"image":"i"}}`)
	equal(t, "changes", len(w.changes(before)), 0)
	got := w.mustPatch(w.cron("a"), merging, `{"spec":{"color":null,"replicas":2}}`)
	equal(t, "a field taken away", []any{valueAt(got, "spec.color"), valueAt(got, "spec.replicas")}, []any{"red", 2})
}

// DEF-026
func TestDryRunShowsDefaults(t *testing.T) {
	w := defaultingWorld(t)
	w.caller.DryRun = true
	o := w.mustCreate(w.cron(""), `{"metadata":{"name":"a"},"spec":{}}`)
	equal(t, "created", []any{valueAt(treeOf(t, o), "spec.color"), valueAt(treeOf(t, o), "status.phase")}, []any{"red", "new"})
}

// DEF-004: what a write to /scale makes on its way gets its defaults when it is read.
func TestScaleOfNothing(t *testing.T) {
	w := defaultingWorld(t)
	w.mustCreate(w.cron(""), `{"metadata":{"name":"a"}}`)
	w.mustPatch(w.cron("a").sub("scale"), merging, `{"spec":{"replicas":3}}`)
	equal(t, "read", []any{valueAt(w.get(w.cron("a")), "spec.replicas"), valueAt(w.get(w.cron("a")), "spec.color")}, []any{3, "red"})
	equal(t, "stored", w.raw("a")["spec"], object.Tree{"replicas": 3})
}

// VAL-018, VAL-029, VAL-030, VAL-166: what a schema refuses, it refuses for every verb, and forgives what was there before.
func TestRatchetingOfEveryVerb(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.cron(""), `{"metadata":{"name":"a"},"spec":{"replicas":15,"image":"i"}}`)
	strict := strings.ReplaceAll(defaulting(""), `"image":{"type":"string"}`, `"image":{"type":"string","maxLength":3}`)
	w.writeCRD(cronTabs(strict, strict))
	_, err := w.create(w.cron(""), `{"metadata":{"name":"b"},"spec":{"replicas":15}}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, "spec.replicas in body should be less than or equal to 10")
	w.mustEdit(w.cron("a"), func(tree object.Tree) { set(tree, "spec.image", "j") })
	w.mustPatch(w.cron("a"), merging, `{"spec":{"image":"k"}}`)
	w.mustPatch(w.cron("a"), applying, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a"},"spec":{"baz":"z"}}`)
	w.mustPatch(w.cron("a").sub("status"), merging, `{"status":{"phase":"x"}}`)
	_, err = w.edit(w.cron("a"), func(tree object.Tree) { set(tree, "spec.replicas", int64(16)) })
	w.refused(err, 422, metav1.StatusReasonInvalid, "less than or equal to 10")
	_, err = w.patch(w.cron("a"), merging, `{"spec":{"image":"long"}}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, "spec.image: Too long")
	_, err = w.patch(w.cron("a"), applying, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a"},"spec":{"baz":"z","image":"long"}}`)
	w.refused(err, 409, metav1.StatusReasonConflict, "")
	_, _, err = w.Patch(w.ctx, w.cron("a"), Patch{Type: applying, Force: true,
		Data: []byte(`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a"},"spec":{"image":"long"}}`)}, w.caller)
	w.refused(err, 422, metav1.StatusReasonInvalid, "spec.image: Too long")
	_, err = w.patch(w.cron("a").sub("status"), merging, `{"status":{"phase":7}}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, "status.phase")
	_, err = w.patch(w.cron("a").sub("scale"), merging, `{"spec":{"replicas":17}}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, "less than or equal to 10")
	_, err = w.patch(w.cron("a"), jsonPatch, `[{"op":"add","path":"/spec/image","value":"long"}]`)
	w.refused(err, 422, metav1.StatusReasonInvalid, "spec.image: Too long")

	w.caller.DryRun = true
	_, err = w.create(w.cron(""), `{"metadata":{"name":"b"},"spec":{"replicas":15}}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, "less than or equal to 10")
	_, err = w.edit(w.cron("a"), func(tree object.Tree) { set(tree, "spec.replicas", int64(16)) })
	w.refused(err, 422, metav1.StatusReasonInvalid, "less than or equal to 10")
	_, err = w.patch(w.cron("a"), merging, `{"spec":{"image":"long"}}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, "spec.image: Too long")
}

// VAL-035: repeated items of a set are refused on a create, and on an update that changes the list. An update that leaves the list as it was
// is accepted, and so are finalizers and a deletion.
func TestDuplicatesInSet(t *testing.T) {
	w := newWorld(t)
	loose := strings.ReplaceAll(defaulting(""), `,"x-kubernetes-list-type":"set"`, "")
	w.writeCRD(cronTabs(loose, loose))
	w.mustCreate(w.cron(""), `{"metadata":{"name":"a"},"spec":{"tags":["x","x"]}}`)
	w.mustCreate(w.cron(""), `{"metadata":{"name":"b"},"spec":{"tags":["x"]}}`)
	w.writeCRD(cronTabs(defaulting(""), defaulting("")))
	_, err := w.create(w.cron(""), `{"metadata":{"name":"c"},"spec":{"tags":["x","y","x"]}}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, `spec.tags[2]: Duplicate value: "x"`)
	w.mustPatch(w.cron("a"), merging, `{"spec":{"image":"i"}}`)
	_, err = w.patch(w.cron("a"), merging, `{"spec":{"tags":["x","x","y"]}}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, `spec.tags[1]: Duplicate value: "x"`)
	w.mustPatch(w.cron("a"), merging, `{"metadata":{"finalizers":["example.com/a"]}}`)
	if _, _, err := w.Delete(w.ctx, w.cron("a"), metav1.DeleteOptions{}, w.caller); err != nil {
		t.Fatal(err)
	}
	w.mustPatch(w.cron("a"), merging, `{"metadata":{"finalizers":null}}`)
	_, err = w.patch(w.cron("b"), merging, `{"spec":{"tags":["x","x"]}}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, `spec.tags[1]: Duplicate value: "x"`)
}

// SCH-045
func TestEmbeddedResourceIsValidated(t *testing.T) {
	w := newWorld(t)
	js := defaulting(`"template":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true},`)
	w.writeCRD(cronTabs(js, js))
	_, err := w.create(w.cron(""), `{"metadata":{"name":"a"},"spec":{"template":{"kind":"Pod","metadata":{"labels":{"a b":"c"}}}}}`)
	status := w.refused(err, 422, metav1.StatusReasonInvalid, "spec.template.apiVersion: Required value")
	if !strings.Contains(status.Message, "spec.template.metadata.labels") {
		t.Error(status.Message)
	}
	w.mustCreate(w.cron(""), `{"metadata":{"name":"a"},"spec":{"template":{"apiVersion":"v1","kind":"Pod","spec":{"x":null}}}}`)
	const head = "apiVersion: stable.example.com/v1\nkind: CronTab\nmetadata: {name: b}\nspec: {template: {apiVersion: v1, kind: Pod, metadata: "
	got := w.mustPatch(w.cron("b"), applying, head+"{labels: {a: null}, annotations: null}}}")
	equal(t, "applied", valueAt(got, "spec.template.metadata"), map[string]any{"labels": map[string]any{"a": ""}})
	_, err = w.patch(w.cron("b"), applying, head+"{creationTimestamp: nonsense}}}")
	w.refused(err, 422, metav1.StatusReasonInvalid, "spec.template.metadata: Invalid value")
}

// SCH-024, SCH-026: a legacy CRD that preserves unknown fields prunes nothing, and validates.
func TestPreserveUnknownFields(t *testing.T) {
	w := newWorld(t)
	js := `{"properties":{"spec":{"properties":{"n":{"type":"integer"}}}}}`
	w.writeCRD(strings.Replace(cronTabs(js, js), `"scope":`, `"preserveUnknownFields":true,"scope":`, 1))
	o := w.mustCreate(w.cron(""), `{"metadata":{"name":"a"},"more":{"x":null},"spec":{"n":1,"m":null}}`)
	equal(t, "kept", treeOf(t, o)["more"], object.Tree{"x": nil})
	_, err := w.create(w.cron(""), `{"metadata":{"name":"b"},"spec":{"n":"one"}}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, "spec.n in body must be of type integer")
	structural := `{"type":"object","properties":{"spec":{"type":"object","properties":{"n":{"type":"integer"}}}}}`
	w.writeCRD(strings.Replace(cronTabs(structural, structural), `"scope":`, `"preserveUnknownFields":true,"scope":`, 1))
	o = w.mustCreate(w.cron(""), `{"metadata":{"name":"b"},"more":1}`)
	equal(t, "still kept", []any{treeOf(t, o)["more"], w.get(w.cron("a"))["more"]}, []any{int64(1), object.Tree{"x": nil}})
	w.writeCRD(cronTabs(structural, structural)) // the same schemas, which now prune
	equal(t, "pruned on read", []any{w.get(w.cron("a"))["more"], w.get(w.cron("b"))["more"]}, []any{nil, nil})
	_, err = w.create(w.cron(""), `{"metadata":{"name":"c"},"more":1}`)
	w.refused(err, 400, metav1.StatusReasonBadRequest, `unknown field "more"`)
	w.writeCRD(cronTabs(defaulting(""), defaulting("")))
	got := w.get(w.cron("a"))
	equal(t, "defaulted", []any{got["more"], valueAt(got, "spec.color")}, []any{nil, "red"})
}
