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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// world is an engine over an empty store in memory, with the built-in kinds, the
// namespace default, and CronTabs in two versions.
type world struct {
	testing.TB
	*Engine
	ctx      context.Context
	now      time.Time
	warnings []string
	caller   Caller
	// start is the revision of the store before anything was written.
	start int64
	// looking, if not nil, is called whenever a built-in kind looks at what others have stored.
	looking func()
}

func (w *world) looks() {
	if w.looking != nil {
		w.looking()
	}
}

const cronTabSchema = `{"type":"object","properties":{"spec":{"type":"object","properties":{
"cronSpec":{"type":"string"},"image":{"type":"string"},"replicas":{"type":"integer"},"color":{"type":"string"},
"any":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
"ports":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"port":{"type":"integer"}},"required":["name"]},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"]}}},
"status":{"type":"object","properties":{"replicas":{"type":"integer"},"selector":{"type":"string"},"phase":{"type":"string"}}}}}`

const cronTabVersion = `{"name":%q,"served":%t,"storage":%t,"schema":{"openAPIV3Schema":%s},
"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas","labelSelectorPath":".status.selector"}},
"selectableFields":[{"jsonPath":".spec.color"}]}`

const cronTabCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
"metadata":{"name":"crontabs.stable.example.com","uid":"crd-uid","creationTimestamp":"2026-01-01T00:00:00Z"},
"spec":{"group":"stable.example.com","scope":"Namespaced","names":{"plural":"crontabs","singular":"crontab","kind":"CronTab","listKind":"CronTabList"},"versions":[%s]},
"status":{"acceptedNames":{"plural":"crontabs","singular":"crontab","kind":"CronTab","listKind":"CronTabList"},
"conditions":[{"type":"NamesAccepted","status":"True"},{"type":"Established","status":"True"}],"storedVersions":["v1"]}}`

const cronTabKey = resource.CRDPrefix + "crontabs.stable.example.com"

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOn(t, openStore(t))
}

// newWorldOn is a world on a store that is empty, and its own.
func newWorldOn(t testing.TB, store storage.Store) *world {
	t.Helper()
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &world{TB: t, ctx: context.Background(), now: time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC), start: store.Head().Revision()}
	var err error
	w.Engine, err = Open(w.ctx, Config{Store: store, Now: func() time.Time { return w.now }, Kinds: func(live *resource.Live) []*resource.Definition {
		return kinds.Definitions(kinds.Config{
			Catalog:  func(ctx context.Context) (*resource.Catalog, error) { w.looks(); return live.Current(ctx) },
			Head:     func() *storage.Snapshot { w.looks(); return store.Head() },
			EventTTL: time.Hour,
		})
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	w.caller = Caller{User: &user.DefaultInfo{Name: "tester"}, FieldManager: "tester", Validation: "Strict",
		Warn: func(text string) { w.warnings = append(w.warnings, text) }}
	w.mustCreate(w.at("", "v1", "namespaces", ""), `{"metadata":{"name":"default"}}`)
	w.writeCRD(cronTabs(cronTabSchema, cronTabSchema))
	return w
}

// cronTabs is the CRD with the schemas of v1, which is stored, and v2.
func cronTabs(v1, v2 string) string {
	return fmt.Sprintf(cronTabCRD, fmt.Sprintf(cronTabVersion, "v1", true, true, v1)+","+fmt.Sprintf(cronTabVersion, "v2", true, false, v2))
}

// writeCRD stores a CRD as its controller would leave it.
func (w *world) writeCRD(manifest string) {
	w.Helper()
	tree := decode(w, manifest)
	write := storage.Write{Key: resource.CRDPrefix + object.Name(tree), Value: object.Pack(tree, 0).JSON()}
	if rec := w.Store.Head().Get(write.Key); rec != nil {
		write.Expected = rec.Modified
	}
	w.commit(write)
}

// commit writes behind the engine's back, and waits until the catalog knows.
func (w *world) commit(writes ...storage.Write) {
	w.Helper()
	if _, err := w.Store.Commit(w.ctx, writes); err != nil {
		w.Fatal(err)
	}
	if _, err := w.Live.Current(w.ctx); err != nil {
		w.Fatal(err)
	}
}

// changes are those after a revision. Revisions alone do not tell how many there were.
func (w *world) changes(after int64) (events []*storage.Event) {
	w.Helper()
	now, err := w.Store.Fresh(w.ctx)
	if err != nil {
		w.Fatal(err)
	}
	c, err := w.Store.Watch(w.ctx, "", after)
	if err != nil {
		w.Fatal(err)
	}
	defer c.Close()
	c.Await(now.Revision())
	for progress := after; progress < now.Revision(); {
		if events, progress, err = c.Take(events); err != nil {
			w.Fatal(err)
		}
		if progress < now.Revision() {
			<-c.Ready()
		}
	}
	return events
}

// newestChange is the revision of the newest one.
func (w *world) newestChange() int64 {
	w.Helper()
	all := w.changes(w.start)
	return all[len(all)-1].Revision
}

// nth is how many changes there were up to a revision.
func (w *world) nth(revision int64) (n int) {
	w.Helper()
	for _, e := range w.changes(w.start) {
		if e.Revision <= revision {
			n++
		}
	}
	return n
}

// compact makes the store forget what is older than a revision.
func (w *world) compact(revision int64) {
	w.Helper()
	store := w.Store.(interface {
		Compact(ctx context.Context, revision int64) error
	})
	if err := store.Compact(w.ctx, revision); err != nil {
		w.Fatal(err)
	}
}

func decode(t testing.TB, text string) object.Tree {
	t.Helper()
	tree, _, err := object.DecodeYAML([]byte(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return tree
}

// at addresses a built-in or custom kind.
func (w *world) at(group, version, plural, namespace string) Target {
	w.Helper()
	v := w.Live.Load().Find(group, version, plural)
	if v == nil {
		w.Fatalf("%s.%s/%s is not served", plural, group, version)
	}
	return Target{Version: v, Namespace: namespace}
}

// cron addresses CronTabs in v1, one of them if name is not empty.
func (w *world) cron(name string) Target {
	w.Helper()
	t := w.at("stable.example.com", "v1", "crontabs", "default")
	t.Name = name
	return t
}

func (w *world) configMap(name string) Target {
	w.Helper()
	t := w.at("", "v1", "configmaps", "default")
	t.Name = name
	return t
}

func (t Target) sub(name string) Target { t.Subresource = name; return t }

// body completes a body with what every one has.
func (w *world) body(t Target, text string) Body {
	w.Helper()
	tree := decode(w, text)
	v := t.Version
	if t.Subresource == "scale" {
		v = ScaleVersion
	}
	for key, value := range map[string]string{"apiVersion": v.APIVersion, "kind": v.Definition.Names.Kind} {
		if tree[key] == nil {
			tree[key] = value
		}
	}
	return Body{Tree: tree}
}

func (w *world) create(t Target, text string) (Object, error) {
	w.Helper()
	return w.Create(w.ctx, t, w.body(t, text), w.caller)
}

func (w *world) mustCreate(t Target, text string) Object {
	w.Helper()
	o, err := w.create(t, text)
	if err != nil {
		w.Fatalf("create: %v", err)
	}
	return o
}

func (w *world) update(t Target, text string) (Object, error) {
	w.Helper()
	o, _, err := w.Update(w.ctx, t, w.body(t, text), w.caller)
	return o, err
}

// edit reads the target, changes it and writes it back.
func (w *world) edit(t Target, f func(object.Tree)) (Object, error) {
	w.Helper()
	whole := t
	if t.Subresource != "scale" {
		whole.Subresource = ""
	}
	tree := w.get(whole)
	f(tree)
	o, _, err := w.Update(w.ctx, t, Body{Tree: tree}, w.caller)
	return o, err
}

func (w *world) mustEdit(t Target, f func(object.Tree)) Object {
	w.Helper()
	o, err := w.edit(t, f)
	if err != nil {
		w.Fatalf("update: %v", err)
	}
	return o
}

func (w *world) patch(t Target, kind types.PatchType, data string) (Object, error) {
	w.Helper()
	o, _, err := w.Patch(w.ctx, t, Patch{Type: kind, Data: []byte(data)}, w.caller)
	return o, err
}

func (w *world) mustPatch(t Target, kind types.PatchType, data string) object.Tree {
	w.Helper()
	o, err := w.patch(t, kind, data)
	if err != nil {
		w.Fatalf("patch: %v", err)
	}
	return treeOf(w, o)
}

func (w *world) get(t Target) object.Tree {
	w.Helper()
	o, err := w.Get(w.ctx, t, "")
	if err != nil {
		w.Fatalf("get: %v", err)
	}
	return treeOf(w, o)
}

func (w *world) delete(t Target, o metav1.DeleteOptions) (Object, bool) {
	w.Helper()
	obj, gone, err := w.Delete(w.ctx, t, o, w.caller)
	if err != nil {
		w.Fatalf("delete: %v", err)
	}
	return obj, gone
}

func treeOf(t testing.TB, o Object) object.Tree {
	t.Helper()
	var tree object.Tree
	tree, _, err := object.DecodeJSON(o.AppendJSON(nil))
	if err != nil {
		t.Fatalf("%v in %s", err, o.AppendJSON(nil))
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

// set puts a value at a dotted path.
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

// refused checks an error's code and reason, and that its message holds text.
func (w *world) refused(err error, code int32, reason metav1.StatusReason, text string) *metav1.Status {
	w.Helper()
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		w.Fatalf("got %v, want a Status with %d %s", err, code, reason)
	}
	s := status.Status()
	if s.Code != code || s.Reason != reason || !strings.Contains(s.Message, text) {
		w.Fatalf("got %d %s %q,\nwant %d %s %q", s.Code, s.Reason, s.Message, code, reason, text)
	}
	return &s
}

// equal compares values by their JSON.
func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	g, _ := json.Marshal(got)
	v, _ := json.Marshal(want)
	if string(g) != string(v) {
		t.Fatalf("%s: got %s, want %s", what, g, v)
	}
}

// deleteCRD removes a CRD as its controller would.
func (w *world) deleteCRD(name string) {
	w.Helper()
	key := resource.CRDPrefix + name
	w.commit(storage.Write{Key: key, Expected: w.Store.Head().Get(key).Modified})
}
