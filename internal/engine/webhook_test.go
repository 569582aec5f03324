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

	"github.com/trellis-k8s/trellis/internal/crd/conversion"
	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// fakeWebhook is a conversion webhook for the kind Host. The storage version v1beta1 has the field hostPort. The
// version v1 has the fields host and port.
type fakeWebhook struct {
	calls, objects atomic.Int64
	down, refuses  atomic.Bool
	id             atomic.Int64  // the value that it gives the label "by"; 0 means no label
	enter          chan struct{} // each call waits until it can receive from enter; nil disables this
}

func (c *fakeWebhook) convert(ctx context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree, error) {
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
		err := fmt.Errorf("conversion webhook for %s failed: webhook is down", to.GroupVersionKind())
		return nil, &conversion.UnreachableError{StatusError: apierrors.NewInternalError(err)}
	}
	if c.refuses.Load() {
		return nil, apierrors.NewInternalError(errors.New("conversion rejected"))
	}
	out := make([]object.Tree, len(objects))
	for i, o := range objects {
		t := object.Copy(o)
		spec, _ := t["spec"].(object.Tree)
		if object.String(t, "apiVersion") == to.APIVersion || object.ResourceVersion(t) != "" {
			return nil, apierrors.NewInternalError(fmt.Errorf("unexpected object: %s", object.AppendJSON(nil, t)))
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
		if by := c.id.Load(); by > 0 {
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
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"hosts","singular":"host","kind":"Host",
"listKind":"HostList"},
"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":"https://h/"}}},
"versions":[
{"name":"v1beta1","served":true,"storage":true,"schema":{"openAPIV3Schema":
{"type":"object","properties":{"spec":{"type":"object","properties":{"hostPort":{"type":"string"}}}}}}},
{"name":"v1","served":true,"storage":false,"selectableFields":[{"jsonPath":".spec.host"}],
"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{
"host":{"type":"string"},"port":{"type":"string"},"proto":{"type":"string","default":"tcp"}}}}}}}]},
"status":{"acceptedNames":{"plural":"hosts","singular":"host","kind":"Host","listKind":"HostList"},
"conditions":[{"type":"NamesAccepted","status":"True"},{"type":"Established","status":"True"}],
"storedVersions":["v1beta1"]}}`

// newHostsFixture returns a fixture with n Hosts that are stored at v1beta1, and their webhook. old is the target
// at v1beta1 and now the target at v1.
func newHostsFixture(t testing.TB, n int) (f *fixture, c *fakeWebhook, old, now verb.Target) {
	f, c = newFixture(t), &fakeWebhook{}
	f.Webhook = c.convert
	f.writeCRD(hostsCRD)
	old, now = f.target("example.com", "v1beta1", "hosts", "default"), f.target("example.com", "v1", "hosts", "default")
	for i := range n {
		f.mustCreate(old, fmt.Sprintf(`{"metadata":{"name":"h%04d"},"spec":{"hostPort":"h%d.example.com:80"}}`, i, i))
	}
	return f, c, old, now
}

// countCalls runs f and returns the number of webhook calls and of converted objects.
func (c *fakeWebhook) countCalls(f func()) [2]int64 {
	calls, objects := c.calls.Load(), c.objects.Load()
	f()
	return [2]int64{c.calls.Load() - calls, c.objects.Load() - objects}
}

// TestListConverts checks that a list converts each object once, in large batches. It prunes fields that the
// version does not declare, and fills in the version's defaults. A list at the storage version does not call the
// webhook (CNV-005, CNV-008, CNV-010, CNV-072).
func TestListConverts(t *testing.T) {
	f, c, old, now := newHostsFixture(t, 3000)
	cold := c.countCalls(func() {
		l := f.list(now, read.ListOptions{})
		equal(t, "items", len(l.Items), 3000)
		equal(t, "first item", treeOf(t, l.Items[0])["spec"],
			map[string]any{"host": "h0.example.com", "port": "80", "proto": "tcp"})
		equal(t, "apiVersion", treeOf(t, l.Items[2999])["apiVersion"], "example.com/v1")
	})
	equal(t, "calls without a cache", cold, [2]int64{2, 3000})
	equal(t, "calls with a cache", c.countCalls(func() {
		f.list(now, read.ListOptions{})
		now.Name = "h0007"
		equal(t, "host", valueAt(f.get(now), "spec.host"), "h7.example.com")
	}), [2]int64{0, 0})
	equal(t, "calls after a write of the CRD's metadata", c.countCalls(func() {
		f.writeCRD(strings.Replace(hostsCRD, `"uid":"hosts-uid"`, `"uid":"hosts-uid","labels":{"a":"b"}`, 1))
		f.list(f.target("example.com", "v1", "hosts", "default"), read.ListOptions{})
	}), [2]int64{0, 0})
	equal(t, "calls at the storage version", c.countCalls(func() { f.list(old, read.ListOptions{}) }), [2]int64{0, 0})
}

// TestPagesConvert checks that pagination converts each object once (CNV-008).
func TestPagesConvert(t *testing.T) {
	f, c, _, now := newHostsFixture(t, 25)
	var names []string
	took := c.countCalls(func() {
		o := read.ListOptions{Limit: 10}
		for {
			l := f.list(now, o)
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

// TestWebhookResultIsServed checks that a read at another version returns the webhook's result. Only the metadata
// that a webhook must not change is taken from the stored object (VER-050).
func TestWebhookResultIsServed(t *testing.T) {
	f, _, old, now := newHostsFixture(t, 1)
	old.Name, now.Name = "h0000", "h0000"
	want := f.get(old)
	equal(t, "as stored", want["spec"], map[string]any{"hostPort": "h0.example.com:80"})
	equal(t, "labels as stored", valueAt(want, "metadata.labels"), nil)
	want["apiVersion"], want["spec"] = "example.com/v1", object.Tree{"host": "h0.example.com", "port": "80",
		"proto": "tcp"}
	set(want, "metadata.labels", object.Tree{"at": "v1"})
	equal(t, "at v1", f.get(now), want)
	equal(
		t,
		"in a list",
		treeOf(t, f.list(f.target("example.com", "v1", "hosts", "default"), read.ListOptions{}).Items[0]),
		want,
	)
}

// TestSelectorsUseConvertedObjects checks that selectors use the labels and fields of the requested version
// (VER-050).
func TestSelectorsUseConvertedObjects(t *testing.T) {
	f, _, old, now := newHostsFixture(t, 3)
	equal(t, "labels at v1", len(f.list(now, read.ListOptions{Labels: labelSelector(t, "at=v1")}).Items), 3)
	equal(t, "labels at v1beta1", len(f.list(old, read.ListOptions{Labels: labelSelector(t, "at=v1")}).Items), 0)
	l := f.list(now, read.ListOptions{Fields: fieldSelector(t, "spec.host=h1.example.com")})
	equal(t, "objects with the field", len(l.Items), 1)
	equal(t, "its labels", l.Items[0].Meta().Labels.Get("at"), "v1")
}

// TestWatchersShareConversions checks that all watches share one conversion of an event (CNV-006).
func TestWatchersShareConversions(t *testing.T) {
	f, c, old, now := newHostsFixture(t, 1)
	start := f.head()
	var watches []*testWatch
	for range 30 {
		watches = append(watches, f.watch(now, read.ListOptions{ResourceVersion: start}))
	}
	selective := f.watch(now, read.ListOptions{ResourceVersion: start, Fields: fieldSelector(t, "spec.host=a")})
	old.Name = "h0000"
	took := c.countCalls(func() {
		f.mustPatch(old, mergePatch, `{"spec":{"hostPort":"a:1"}}`)
		f.mustPatch(old, mergePatch, `{"spec":{"hostPort":"b:1"}}`)
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

// TestWritesConvert checks that a write at another version converts the object once to this version and once to the
// storage version. The versions have different schemas (CNV-007, VER-009).
func TestWritesConvert(t *testing.T) {
	f, c, old, now := newHostsFixture(t, 1)
	var created record.Object
	took := c.countCalls(func() {
		created = f.mustCreate(now, `{"metadata":{"name":"new"},"spec":{"host":"n","port":"1"}}`)
	})
	equal(t, "calls of a create", took[0], int64(2))
	equal(t, "created", treeOf(t, created)["spec"], map[string]any{"host": "n", "port": "1", "proto": "tcp"})
	was := now
	was.Name = "h0000"
	f.get(was)
	took = c.countCalls(func() { f.mustPatch(was, mergePatch, `{"spec":{"host":"m"}}`) })
	equal(t, "calls of a patch of an object written at v1beta1", took[0], int64(2))
	old.Name, now.Name = "new", "new"
	equal(t, "stored", f.get(old)["spec"], map[string]any{"hostPort": "n:1"})
	took = c.countCalls(func() { f.mustPatch(now, mergePatch, `{"spec":{"host":"m"}}`) })
	equal(t, "calls of a patch", took[0], int64(2))
	took = c.countCalls(func() { f.mustEdit(now, func(t object.Tree) { set(t, "spec.port", "2") }) })
	equal(t, "calls of a read and an update", took[0], int64(2))
	equal(t, "stored", f.get(old)["spec"], map[string]any{"hostPort": "m:2"})
	before := f.Store.Head().Revision()
	f.mustEdit(now, func(object.Tree) {})
	equal(t, "changes of an update without changes", len(f.eventsAfter(before)), 0)
}

// TestWebhookDown checks that requests that need an unavailable webhook fail and change nothing. Requests that need
// no conversion succeed, such as deletions and reads of metadata (CNV-059, CNV-063).
func TestWebhookDown(t *testing.T) {
	f, c, old, now := newHostsFixture(t, 3)
	c.down.Store(true)
	one := now
	one.Name = "h0001"
	before, revision := f.head(), f.Store.Head().Revision()
	_, err := f.Get(f.ctx, one, "")
	f.expectStatus(err, 500, metav1.StatusReasonInternalError, "webhook is down")
	_, err = f.List(f.ctx, now, read.ListOptions{})
	f.expectStatus(err, 500, metav1.StatusReasonInternalError, "webhook is down")
	_, err = f.patch(one, mergePatch, `{"spec":{"host":"x"}}`)
	f.expectStatus(err, 500, metav1.StatusReasonInternalError, "webhook is down")
	_, err = f.create(now, `{"metadata":{"name":"new"},"spec":{"host":"n","port":"1"}}`)
	f.expectStatus(err, 500, metav1.StatusReasonInternalError, "webhook is down")
	equal(t, "changes", len(f.eventsAfter(revision)), 0)

	watch := f.watch(now, read.ListOptions{ResourceVersion: before})
	old.Name = "h0001"
	f.mustPatch(old, mergePatch, `{"metadata":{"finalizers":["example.com/f"]}}`)
	if _, err := watch.next(); err == nil || !strings.Contains(err.Error(), "webhook is down") {
		t.Fatalf("got %v, want the error of the webhook", err)
	}
	revision = f.Store.Head().Revision()
	_, _, err = f.Delete(f.ctx, one, metav1.DeleteOptions{}, f.caller)
	f.expectStatus(err, 500, metav1.StatusReasonInternalError, "webhook is down")
	equal(t, "changes of a deletion whose result cannot be converted", len(f.eventsAfter(revision)), 0)
	one.Name = "h0002"
	if _, deleted := f.delete(one, metav1.DeleteOptions{}); !deleted {
		t.Error("an object without finalizers was not deleted")
	}

	controller := now
	controller.AsStored = true
	equal(t, "objects that the controller lists", len(f.list(controller, read.ListOptions{}).Items), 2)
	controller.Name = "h0001"
	if _, deleted := f.delete(controller, metav1.DeleteOptions{}); deleted {
		t.Error("an object with a finalizer was deleted")
	}
	patched, err := f.patch(controller, mergePatch, `{"metadata":{"finalizers":null}}`)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "name of the patched object", patched.Meta().Name, "h0001")
	if f.Store.Head().Get(old.Version.Definition.Key("default", "h0001")) != nil {
		t.Error("the object was not deleted after its last finalizer")
	}
}

// TestControlLoopReadsAreNotShared checks that other readers get a converted object after a controller has read or
// written it with AsStored (CNV-005).
func TestControlLoopReadsAreNotShared(t *testing.T) {
	f, _, old, now := newHostsFixture(t, 1)
	old.Name, now.Name = "h0000", "h0000"
	controller := now
	controller.AsStored = true
	f.get(controller)
	equal(t, "host after a read as stored", valueAt(f.get(now), "spec.host"), "h0.example.com")
	f.mustPatch(controller, mergePatch, `{"metadata":{"labels":{"seen":"yes"}}}`)
	equal(t, "host after a write as stored", valueAt(f.get(now), "spec.host"), "h0.example.com")
}

// TestFailedConversionIsRetried checks that a failed conversion is not cached. If a request is cancelled while
// others wait for its conversion, one of them calls the webhook again (CNV-059).
func TestFailedConversionIsRetried(t *testing.T) {
	f, c, _, now := newHostsFixture(t, 1)
	now.Name = "h0000"
	c.down.Store(true)
	if _, err := f.Get(f.ctx, now, ""); err == nil {
		t.Fatal("got no error from a webhook that is down")
	}
	c.down.Store(false)
	c.enter = make(chan struct{})
	cancelled, cancel := context.WithCancel(f.ctx)
	first, second := make(chan error), make(chan error)
	go func() { _, err := f.Get(cancelled, now, ""); first <- err }()
	for c.calls.Load() < 2 { // waits until the first request has called the webhook
	}
	go func() { _, err := f.Get(f.ctx, now, ""); second <- err }()
	cancel()
	if err := <-first; err == nil {
		t.Error("got no error from a cancelled request")
	}
	close(c.enter)
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// TestStatusIsResetAcrossVersions checks that a write at another version does not change the status. Field
// management has already converted the client's object when the status is reset (SUB-006).
func TestStatusIsResetAcrossVersions(t *testing.T) {
	f, _, _, _ := newHostsFixture(t, 0)
	with := strings.ReplaceAll(hostsCRD, `"served":true,`, `"served":true,"subresources":{"status":{}},`)
	with = strings.ReplaceAll(with, `"type":"object","properties":{"spec"`,
		`"type":"object","properties":{"status":{"type":"object","properties":{"phase":{"type":"string"}}},"spec"`)
	f.writeCRD(with)
	old, now := f.target("example.com", "v1beta1", "hosts", "default"), f.target("example.com", "v1", "hosts",
		"default")
	f.mustCreate(old, `{"metadata":{"name":"h"},"spec":{"hostPort":"a:1"}}`)
	old.Name, now.Name = "h", "h"
	f.mustPatch(subresource(old, "status"), mergePatch, `{"status":{"phase":"real"}}`)
	f.mustPatch(now, mergePatch, `{"spec":{"host":"b"},"status":{"phase":"forged"}}`)
	seen := f.get(old)
	equal(t, "stored", []any{valueAt(seen, "spec.hostPort"), valueAt(seen, "status.phase")}, []any{"b:1", "real"})
}
