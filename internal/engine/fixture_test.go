package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/scales"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// fixture holds a test and an engine with a new in-memory store. The store contains the built-in kinds, the
// namespace "default", and the CronTab CRD with two versions.
type fixture struct {
	testing.TB
	*Engine
	ctx      context.Context
	now      time.Time
	warnings []string
	caller   verb.Caller
	start    int64  // the store's revision before the first write
	onRead   func() // called when a built-in kind reads the catalog or the store; nil disables it
	// beforeCommit receives the writes of the engine before each commit. It may make other writes. It may be nil.
	beforeCommit func([]storage.Write)
	store        storage.Store // does not call beforeCommit
}

// fixtureStore calls fixture.beforeCommit.
type fixtureStore struct {
	storage.Store
	f *fixture
}

// Commit implements storage.Store.
func (s fixtureStore) Commit(
	ctx context.Context, writes []storage.Write, guards ...storage.Guard,
) ([]*storage.Event, error) {
	if s.f.beforeCommit != nil {
		s.f.beforeCommit(writes)
	}
	return s.Store.Commit(ctx, writes, guards...)
}

// notifyRead calls onRead.
func (f *fixture) notifyRead() {
	if f.onRead != nil {
		f.onRead()
	}
}

const cronTabSchema = `{"type":"object","properties":{"spec":{"type":"object","properties":{
"cronSpec":{"type":"string"},"image":{"type":"string"},"replicas":{"type":"integer"},"color":{"type":"string"},
"any":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
"ports":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"port":{"type":"integer"}},
"required":["name"]},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"]}}},
"status":{"type":"object","properties":{"replicas":{"type":"integer"},"selector":{"type":"string"},
"phase":{"type":"string"}}}}}`

const cronTabVersion = `{"name":%q,"served":%t,"storage":%t,"schema":{"openAPIV3Schema":%s},
"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas",
"labelSelectorPath":".status.selector"}},
"selectableFields":[{"jsonPath":".spec.color"}]}`

const cronTabCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
"metadata":{"name":"crontabs.stable.example.com","uid":"crd-uid","creationTimestamp":"2026-01-01T00:00:00Z"},
"spec":{"group":"stable.example.com","scope":"Namespaced","names":{"plural":"crontabs","singular":"crontab",
"kind":"CronTab","listKind":"CronTabList"},"versions":[%s]},
"status":{"acceptedNames":{"plural":"crontabs","singular":"crontab","kind":"CronTab","listKind":"CronTabList"},
"conditions":[{"type":"NamesAccepted","status":"True"},{"type":"Established","status":"True"}],
"storedVersions":["v1"]}}`

const cronTabKey = definition.CRDPrefix + "crontabs.stable.example.com"

func newFixture(t testing.TB) *fixture {
	t.Helper()
	return newFixtureOn(t, openStore(t))
}

// newFixtureOn returns a fixture on an empty store, and closes the store at the end of the test.
func newFixtureOn(t testing.TB, store storage.Store) *fixture {
	t.Helper()
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &fixture{TB: t, ctx: context.Background(), now: time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC),
		start: store.Head().Revision(), store: store}
	var err error
	f.Engine, err = Open(f.ctx, Config{Store: fixtureStore{store, f}, Now: func() time.Time { return f.now },
		Kinds: func(live *catalog.Live) []*resource.Definition {
			return kinds.Definitions(kinds.Config{
				Catalog: func(ctx context.Context) (*catalog.Catalog,
					error) {
					f.notifyRead()
					return live.Current(ctx)
				},
				Head:     func() *storage.Snapshot { f.notifyRead(); return store.Head() },
				EventTTL: time.Hour,
			})
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	f.caller = verb.Caller{User: &user.DefaultInfo{Name: "tester"}, FieldManager: "tester", Validation: "Strict",
		Warn: func(text string) { f.warnings = append(f.warnings, text) }}
	f.mustCreate(f.target("", "v1", "namespaces", ""), `{"metadata":{"name":"default"}}`)
	f.writeCRD(cronTabs(cronTabSchema, cronTabSchema))
	return f
}

// cronTabs returns the CronTab CRD with the given schemas. v1 is the storage version.
func cronTabs(v1, v2 string) string {
	return fmt.Sprintf(cronTabCRD, fmt.Sprintf(cronTabVersion, "v1", true, true, v1)+","+
		fmt.Sprintf(cronTabVersion, "v2", true, false, v2))
}

// writeCRD stores a CRD with the status that its controller would set.
func (f *fixture) writeCRD(manifest string) {
	f.Helper()
	tree := decode(f, manifest)
	write := storage.Write{Key: definition.CRDPrefix + object.Name(tree), Value: object.Pack(tree, 0).JSON()}
	if rec := f.Store.Head().Get(write.Key); rec != nil {
		write.Expected = rec.Modified
	}
	f.commit(write)
}

// commit writes to the store directly, bypassing the engine, and waits until the catalog includes the writes.
func (f *fixture) commit(writes ...storage.Write) {
	f.Helper()
	if _, err := f.store.Commit(f.ctx, writes); err != nil {
		f.Fatal(err)
	}
	if _, err := f.Live.Current(f.ctx); err != nil {
		f.Fatal(err)
	}
}

// eventsAfter returns the events after a revision. The number of events may be smaller than the difference of the
// revisions, because revisions may have gaps.
func (f *fixture) eventsAfter(after int64) (events []*storage.Event) {
	f.Helper()
	now, err := f.Store.Fresh(f.ctx)
	if err != nil {
		f.Fatal(err)
	}
	c, err := f.Store.Watch(f.ctx, "", after)
	if err != nil {
		f.Fatal(err)
	}
	defer c.Close()
	c.Await(now.Revision())
	for progress := after; progress < now.Revision(); {
		if events, progress, err = c.Take(events); err != nil {
			f.Fatal(err)
		}
		if progress < now.Revision() {
			<-c.Ready()
		}
	}
	return events
}

// newestRevision returns the revision of the newest event.
func (f *fixture) newestRevision() int64 {
	f.Helper()
	all := f.eventsAfter(f.start)
	return all[len(all)-1].Revision
}

// countEvents returns the number of events up to a revision.
func (f *fixture) countEvents(revision int64) (n int) {
	f.Helper()
	for _, e := range f.eventsAfter(f.start) {
		if e.Revision <= revision {
			n++
		}
	}
	return n
}

// compact drops the store's history before a revision.
func (f *fixture) compact(revision int64) {
	f.Helper()
	store := f.store.(interface {
		Compact(ctx context.Context, revision int64) error
	})
	if err := store.Compact(f.ctx, revision); err != nil {
		f.Fatal(err)
	}
}

func decode(t testing.TB, text string) object.Tree {
	t.Helper()
	tree, _, err := object.DecodeYAML([]byte(text))
	if err != nil {
		t.Fatalf("cannot decode %s: %v", text, err)
	}
	return tree
}

// target returns the target of all objects of a built-in or custom kind.
func (f *fixture) target(group, version, plural, namespace string) verb.Target {
	f.Helper()
	v := f.Live.Load().Find(group, version, plural)
	if v == nil {
		f.Fatalf("%s.%s/%s is not served", plural, group, version)
	}
	return verb.Target{Version: v, Namespace: namespace}
}

// cron returns the target of a CronTab at v1, or of all CronTabs if name is "".
func (f *fixture) cron(name string) verb.Target {
	f.Helper()
	t := f.target("stable.example.com", "v1", "crontabs", "default")
	t.Name = name
	return t
}

func (f *fixture) configMap(name string) verb.Target {
	f.Helper()
	t := f.target("", "v1", "configmaps", "default")
	t.Name = name
	return t
}

func subresource(t verb.Target, name string) verb.Target { t.Subresource = name; return t }

// body decodes a request body, and adds apiVersion and kind if they are missing.
func (f *fixture) body(t verb.Target, text string) verb.Body {
	f.Helper()
	tree := decode(f, text)
	v := t.Version
	if t.Subresource == "scale" {
		v = scales.Version
	}
	for key, value := range map[string]string{"apiVersion": v.APIVersion, "kind": v.Definition.Names.Kind} {
		if tree[key] == nil {
			tree[key] = value
		}
	}
	return verb.Body{Tree: tree}
}

func (f *fixture) create(t verb.Target, text string) (record.Object, error) {
	f.Helper()
	return f.Create(f.ctx, t, f.body(t, text), f.caller)
}

func (f *fixture) mustCreate(t verb.Target, text string) record.Object {
	f.Helper()
	o, err := f.create(t, text)
	if err != nil {
		f.Fatalf("create: %v", err)
	}
	return o
}

func (f *fixture) update(t verb.Target, text string) (record.Object, error) {
	f.Helper()
	o, _, err := f.Update(f.ctx, t, f.body(t, text), f.caller)
	return o, err
}

// edit reads the target, changes it and updates it.
func (f *fixture) edit(t verb.Target, change func(object.Tree)) (record.Object, error) {
	f.Helper()
	readTarget := t
	if t.Subresource != "scale" {
		readTarget.Subresource = ""
	}
	tree := f.get(readTarget)
	change(tree)
	o, _, err := f.Update(f.ctx, t, verb.Body{Tree: tree}, f.caller)
	return o, err
}

func (f *fixture) mustEdit(t verb.Target, change func(object.Tree)) record.Object {
	f.Helper()
	o, err := f.edit(t, change)
	if err != nil {
		f.Fatalf("update: %v", err)
	}
	return o
}

func (f *fixture) patch(t verb.Target, kind types.PatchType, data string) (record.Object, error) {
	f.Helper()
	o, _, err := f.Patch(f.ctx, t, verb.Patch{Type: kind, Data: []byte(data)}, f.caller)
	return o, err
}

func (f *fixture) mustPatch(t verb.Target, kind types.PatchType, data string) object.Tree {
	f.Helper()
	o, err := f.patch(t, kind, data)
	if err != nil {
		f.Fatalf("patch: %v", err)
	}
	return treeOf(f, o)
}

func (f *fixture) get(t verb.Target) object.Tree {
	f.Helper()
	o, err := f.Get(f.ctx, t, "")
	if err != nil {
		f.Fatalf("get: %v", err)
	}
	return treeOf(f, o)
}

func (f *fixture) delete(t verb.Target, o metav1.DeleteOptions) (record.Object, bool) {
	f.Helper()
	obj, deleted, err := f.Delete(f.ctx, t, o, f.caller)
	if err != nil {
		f.Fatalf("delete: %v", err)
	}
	return obj, deleted
}

func treeOf(t testing.TB, o record.Object) object.Tree {
	t.Helper()
	var tree object.Tree
	tree, _, err := object.DecodeJSON(o.AppendJSON(nil))
	if err != nil {
		t.Fatalf("cannot decode %s: %v", o.AppendJSON(nil), err)
	}
	return tree
}

// valueAt returns the value at a dotted path.
func valueAt(tree object.Tree, path string) any {
	var v any = tree
	for _, name := range strings.Split(path, ".") {
		m, _ := v.(object.Tree)
		v = m[name]
	}
	return v
}

// set sets the value at a dotted path, and creates the missing maps of the path.
func set(tree object.Tree, path string, value any) {
	names := strings.Split(path, ".")
	for _, name := range names[:len(names)-1] {
		next, _ := tree[name].(object.Tree)
		if next == nil {
			next = object.Tree{}
			tree[name] = next
		}
		tree = next
	}
	tree[names[len(names)-1]] = value
}

// expectStatus checks the code and the reason of an error's Status, and that its message contains text. It returns
// the Status.
func (f *fixture) expectStatus(err error, code int32, reason metav1.StatusReason, text string) *metav1.Status {
	f.Helper()
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		f.Fatalf("got %v, want a Status with %d %s", err, code, reason)
	}
	s := status.Status()
	if s.Code != code || s.Reason != reason || !strings.Contains(s.Message, text) {
		f.Fatalf("got %d %s %q,\nwant %d %s %q", s.Code, s.Reason, s.Message, code, reason, text)
	}
	return &s
}

// equal compares two values by their JSON.
func equal(t testing.TB, subject string, got, want any) {
	t.Helper()
	g, _ := json.Marshal(got)
	v, _ := json.Marshal(want)
	if string(g) != string(v) {
		t.Fatalf("%s: got %s, want %s", subject, g, v)
	}
}

// deleteCRD deletes a CRD from the store, as its controller does when a deletion completes.
func (f *fixture) deleteCRD(name string) {
	f.Helper()
	key := definition.CRDPrefix + name
	f.commit(storage.Write{Key: key, Expected: f.Store.Head().Get(key).Modified})
}

// managersOf returns the managedFields of an object.
func managersOf(t object.Tree) []metav1.ManagedFieldsEntry {
	return (&unstructured.Unstructured{Object: t}).GetManagedFields()
}
