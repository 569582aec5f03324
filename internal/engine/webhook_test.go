package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/conversion"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// converter stands at the place of a webhook: v1beta1, which is stored, has hostPort, v1 has host and port.
type converter struct {
	calls, objects atomic.Int64
	down, refuses  atomic.Bool
	by             atomic.Int64  // which webhook it is; its objects' label "by" if it is not the first
	enter          chan struct{} // if set, each call waits here
}

func (c *converter) convert(ctx context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree, error) {
	c.calls.Add(1)
	c.objects.Add(int64(len(objects)))
	if c.enter != nil {
		select {
		case <-c.enter:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if c.down.Load() {
		err := fmt.Errorf("conversion webhook for %s failed: it is down", to.GroupVersionKind())
		return nil, &conversion.UnreachableError{StatusError: apierrors.NewInternalError(err)}
	}
	if c.refuses.Load() {
		return nil, apierrors.NewInternalError(errors.New("it refuses"))
	}
	out := make([]object.Tree, len(objects))
	for i, o := range objects {
		t := object.Copy(o)
		spec, _ := t["spec"].(object.Tree)
		if object.String(t, "apiVersion") == to.APIVersion || object.ResourceVersion(t) != "" {
			return nil, apierrors.NewInternalError(fmt.Errorf("not for a webhook: %s", object.AppendJSON(nil, t)))
		}
		if hostPort, ok := spec["hostPort"].(string); ok {
			host, port, err := net.SplitHostPort(hostPort)
			if err != nil {
				return nil, apierrors.NewInternalError(err)
			}
			t["spec"] = object.Tree{"host": host, "port": port, "unknown": "pruned"}
		} else if host, ok := spec["host"].(string); ok {
			t["spec"] = object.Tree{"hostPort": host + ":" + object.String(spec, "port")}
		}
		labels := object.Tree{"at": to.GroupVersion.Version}
		if by := c.by.Load(); by > 0 {
			labels["by"] = strconv.FormatInt(by, 10)
		}
		object.EnsureMetadata(t)["labels"] = labels
		t["apiVersion"] = to.APIVersion
		out[i] = t
	}
	return out, nil
}

const hostsCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
"metadata":{"name":"hosts.example.com","uid":"hosts-uid","creationTimestamp":"2026-01-01T00:00:00Z"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"hosts","singular":"host","kind":"Host","listKind":"HostList"},
"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":"https://h/"}}},
"versions":[
{"name":"v1beta1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"hostPort":{"type":"string"}}}}}}},
{"name":"v1","served":true,"storage":false,"selectableFields":[{"jsonPath":".spec.host"}],"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{
"host":{"type":"string"},"port":{"type":"string"},"proto":{"type":"string","default":"tcp"}}}}}}}]},
"status":{"acceptedNames":{"plural":"hosts","singular":"host","kind":"Host","listKind":"HostList"},
"conditions":[{"type":"NamesAccepted","status":"True"},{"type":"Established","status":"True"}],"storedVersions":["v1beta1"]}}`

// hosts is a world with n Hosts, stored at v1beta1, and the two ways to address them.
func hosts(t testing.TB, n int) (w *world, c *converter, old, now Target) {
	w, c = newWorld(t), &converter{}
	w.Webhook = c.convert
	w.writeCRD(hostsCRD)
	old, now = w.at("example.com", "v1beta1", "hosts", "default"), w.at("example.com", "v1", "hosts", "default")
	for i := range n {
		w.mustCreate(old, fmt.Sprintf(`{"metadata":{"name":"h%04d"},"spec":{"hostPort":"h%d.example.com:80"}}`, i, i))
	}
	return w, c, old, now
}

// counted runs f and returns how many calls and objects it took.
func (c *converter) counted(f func()) [2]int64 {
	calls, objects := c.calls.Load(), c.objects.Load()
	f()
	return [2]int64{c.calls.Load() - calls, c.objects.Load() - objects}
}

// CNV-005 CNV-008 CNV-010 CNV-072: a list converts each object once, in large batches; what the version has no field for
// is pruned, its defaults are filled in; at the stored version nobody is asked.
func TestListConverts(t *testing.T) {
	w, c, old, now := hosts(t, 3000)
	cold := c.counted(func() {
		l := w.list(now, ListOptions{})
		equal(t, "items", len(l.Items), 3000)
		equal(t, "the first", treeOf(t, l.Items[0])["spec"], map[string]any{"host": "h0.example.com", "port": "80", "proto": "tcp"})
		equal(t, "apiVersion", treeOf(t, l.Items[2999])["apiVersion"], "example.com/v1")
	})
	equal(t, "cold", cold, [2]int64{2, 3000})
	equal(t, "warm, and one at a time", c.counted(func() {
		w.list(now, ListOptions{})
		now.Name = "h0007"
		equal(t, "got", valueAt(w.get(now), "spec.host"), "h7.example.com")
	}), [2]int64{0, 0})
	equal(t, "warm after a write of the CRD's metadata", c.counted(func() {
		w.writeCRD(strings.Replace(hostsCRD, `"uid":"hosts-uid"`, `"uid":"hosts-uid","labels":{"a":"b"}`, 1))
		w.list(w.at("example.com", "v1", "hosts", "default"), ListOptions{})
	}), [2]int64{0, 0})
	equal(t, "as stored", c.counted(func() { w.list(old, ListOptions{}) }), [2]int64{0, 0})
}

// CNV-008: pages convert what they show, and one more.
func TestPagesConvert(t *testing.T) {
	w, c, _, now := hosts(t, 25)
	var names []string
	took := c.counted(func() {
		o := ListOptions{Limit: 10}
		for {
			l := w.list(now, o)
			for _, item := range l.Items {
				names = append(names, item.Meta().Name)
			}
			if o.Continue = l.Continue; o.Continue == "" {
				return
			}
		}
	})
	equal(t, "names", len(names), 25)
	equal(t, "objects converted", took[1], int64(25))
}

// VER-050: what a reader gets at another version is what the webhook has made of the object, and not the stored object with another
// apiVersion. Only metadata that a webhook must not change is as stored.
func TestWebhookDecides(t *testing.T) {
	w, _, old, now := hosts(t, 1)
	old.Name, now.Name = "h0000", "h0000"
	want := w.get(old)
	equal(t, "as stored", want["spec"], map[string]any{"hostPort": "h0.example.com:80"})
	equal(t, "labels as stored", valueAt(want, "metadata.labels"), nil)
	want["apiVersion"], want["spec"] = "example.com/v1", object.Tree{"host": "h0.example.com", "port": "80", "proto": "tcp"}
	set(want, "metadata.labels", object.Tree{"at": "v1"})
	equal(t, "at v1", w.get(now), want)
	equal(t, "in a list", treeOf(t, w.list(w.at("example.com", "v1", "hosts", "default"), ListOptions{}).Items[0]), want)
}

// VER-050: labels and selectable fields are those of the version asked for.
func TestSelectorsSeeTheConverted(t *testing.T) {
	w, _, old, now := hosts(t, 3)
	equal(t, "labels at v1", len(w.list(now, ListOptions{Labels: labelSelector(t, "at=v1")}).Items), 3)
	equal(t, "labels at v1beta1", len(w.list(old, ListOptions{Labels: labelSelector(t, "at=v1")}).Items), 0)
	l := w.list(now, ListOptions{Fields: fieldSelector(t, "spec.host=h1.example.com")})
	equal(t, "a field", len(l.Items), 1)
	equal(t, "its labels", l.Items[0].Meta().Labels.Get("at"), "v1")
}

// CNV-006: a watch converts an event once, however many watch.
func TestWatchersShareConversions(t *testing.T) {
	w, c, old, now := hosts(t, 1)
	start := w.head()
	var watches []*watching
	for range 30 {
		watches = append(watches, w.watch(now, ListOptions{ResourceVersion: start}))
	}
	selective := w.watch(now, ListOptions{ResourceVersion: start, Fields: fieldSelector(t, "spec.host=a")})
	old.Name = "h0000"
	took := c.counted(func() {
		w.mustPatch(old, merging, `{"spec":{"hostPort":"a:1"}}`)
		w.mustPatch(old, merging, `{"spec":{"hostPort":"b:1"}}`)
		for _, each := range watches {
			for _, host := range []string{"a", "b"} {
				ev, err := each.next()
				if err != nil {
					t.Fatal(err)
				}
				equal(t, "host", valueAt(treeOf(t, ev.Object), "spec.host"), host)
			}
		}
	})
	equal(t, "objects converted", took[1], int64(2))
	for _, kind := range []string{"ADDED", "DELETED"} {
		ev, err := selective.next()
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "selected", []any{ev.Type, valueAt(treeOf(t, ev.Object), "spec.host")}, []any{kind, "a"})
	}
}

// CNV-007 VER-009: a write at another version, which has another schema, converts there and back, and no more.
func TestWritesConvert(t *testing.T) {
	w, c, old, now := hosts(t, 1)
	var created Object
	took := c.counted(func() {
		created = w.mustCreate(now, `{"metadata":{"name":"new"},"spec":{"host":"n","port":"1"}}`)
	})
	equal(t, "calls of a create", took[0], int64(2))
	equal(t, "created", treeOf(t, created)["spec"], map[string]any{"host": "n", "port": "1", "proto": "tcp"})
	was := now
	was.Name = "h0000"
	w.get(was)
	took = c.counted(func() { w.mustPatch(was, merging, `{"spec":{"host":"m"}}`) })
	equal(t, "calls of a patch of what others have written at v1beta1", took[0], int64(2))
	old.Name, now.Name = "new", "new"
	equal(t, "stored", w.get(old)["spec"], map[string]any{"hostPort": "n:1"})
	took = c.counted(func() { w.mustPatch(now, merging, `{"spec":{"host":"m"}}`) })
	equal(t, "calls of a patch", took[0], int64(2))
	took = c.counted(func() { w.mustEdit(now, func(t object.Tree) { set(t, "spec.port", "2") }) })
	equal(t, "calls of a read and an update", took[0], int64(2))
	equal(t, "stored", w.get(old)["spec"], map[string]any{"hostPort": "m:2"})
	before := w.Store.Head().Revision()
	w.mustEdit(now, func(object.Tree) {})
	equal(t, "changes by nothing new", len(w.changes(before)), 0)
}

// CNV-059 CNV-063: a webhook that is down fails what needs it, changes nothing, and is no hindrance to deletion and to those
// who look at metadata only.
func TestWebhookDown(t *testing.T) {
	w, c, old, now := hosts(t, 3)
	c.down.Store(true)
	one := now
	one.Name = "h0001"
	before, revision := w.head(), w.Store.Head().Revision()
	_, err := w.Get(w.ctx, one, "")
	w.refused(err, 500, metav1.StatusReasonInternalError, "it is down")
	_, err = w.List(w.ctx, now, ListOptions{})
	w.refused(err, 500, metav1.StatusReasonInternalError, "it is down")
	_, err = w.patch(one, merging, `{"spec":{"host":"x"}}`)
	w.refused(err, 500, metav1.StatusReasonInternalError, "it is down")
	_, err = w.create(now, `{"metadata":{"name":"new"},"spec":{"host":"n","port":"1"}}`)
	w.refused(err, 500, metav1.StatusReasonInternalError, "it is down")
	equal(t, "changes", len(w.changes(revision)), 0)

	watch := w.watch(now, ListOptions{ResourceVersion: before})
	old.Name = "h0001"
	w.mustPatch(old, merging, `{"metadata":{"finalizers":["example.com/f"]}}`)
	if _, err := watch.next(); err == nil || !strings.Contains(err.Error(), "it is down") {
		t.Fatalf("the watch ends with %v", err)
	}
	revision = w.Store.Head().Revision()
	_, _, err = w.Delete(w.ctx, one, metav1.DeleteOptions{}, w.caller)
	w.refused(err, 500, metav1.StatusReasonInternalError, "it is down")
	equal(t, "changes by a deletion that cannot be shown", len(w.changes(revision)), 0)
	one.Name = "h0002"
	if _, gone := w.delete(one, metav1.DeleteOptions{}); !gone {
		t.Error("an object without finalizers needs no conversion to go")
	}

	loop := now
	loop.AsStored = true
	equal(t, "metadata seen by a loop", len(w.list(loop, ListOptions{}).Items), 2)
	loop.Name = "h0001"
	if _, gone := w.delete(loop, metav1.DeleteOptions{}); gone {
		t.Error("a finalizer is left")
	}
	patched, err := w.patch(loop, merging, `{"metadata":{"finalizers":null}}`)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "what the loop gets back", patched.Meta().Name, "h0001")
	if w.Store.Head().Get(old.Version.Definition.Key("default", "h0001")) != nil {
		t.Error("the last finalizer has been taken off")
	}
}

// CNV-005: what a control loop has read, or written, as it is stored is converted for those who come after it.
func TestLoopsDoNotHideConversion(t *testing.T) {
	w, _, old, now := hosts(t, 1)
	old.Name, now.Name = "h0000", "h0000"
	loop := now
	loop.AsStored = true
	w.get(loop)
	equal(t, "read after a loop has read", valueAt(w.get(now), "spec.host"), "h0.example.com")
	w.mustPatch(loop, merging, `{"metadata":{"labels":{"seen":"yes"}}}`)
	equal(t, "read after a loop has written", valueAt(w.get(now), "spec.host"), "h0.example.com")
}

// CNV-059: a failure is not kept, and who waits for somebody that gives up tries by himself.
func TestConversionIsTriedAgain(t *testing.T) {
	w, c, _, now := hosts(t, 1)
	now.Name = "h0000"
	c.down.Store(true)
	if _, err := w.Get(w.ctx, now, ""); err == nil {
		t.Fatal("it is down")
	}
	c.down.Store(false)
	c.enter = make(chan struct{})
	impatient, giveUp := context.WithCancel(w.ctx)
	first, second := make(chan error), make(chan error)
	go func() { _, err := w.Get(impatient, now, ""); first <- err }()
	for c.calls.Load() < 2 { // the first is in its call
	}
	go func() { _, err := w.Get(w.ctx, now, ""); second <- err }()
	giveUp()
	if err := <-first; err == nil {
		t.Error("it was given up")
	}
	close(c.enter)
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// SUB-006: what a write may not touch is restored before it is stored, though field management has had the object converted
// as it was sent.
func TestStatusIsKeptAcrossVersions(t *testing.T) {
	w, _, _, _ := hosts(t, 0)
	with := strings.ReplaceAll(hostsCRD, `"served":true,`, `"served":true,"subresources":{"status":{}},`)
	with = strings.ReplaceAll(with, `"type":"object","properties":{"spec"`, `"type":"object","properties":{"status":{"type":"object","properties":{"phase":{"type":"string"}}},"spec"`)
	w.writeCRD(with)
	old, now := w.at("example.com", "v1beta1", "hosts", "default"), w.at("example.com", "v1", "hosts", "default")
	w.mustCreate(old, `{"metadata":{"name":"h"},"spec":{"hostPort":"a:1"}}`)
	old.Name, now.Name = "h", "h"
	w.mustPatch(old.sub("status"), merging, `{"status":{"phase":"real"}}`)
	w.mustPatch(now, merging, `{"spec":{"host":"b"},"status":{"phase":"forged"}}`)
	seen := w.get(old)
	equal(t, "stored", []any{valueAt(seen, "spec.hostPort"), valueAt(seen, "status.phase")}, []any{"b:1", "real"})
}
