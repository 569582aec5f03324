package handlers

import (
	"fmt"
	"net/http/httptest"
	"reflect"
	goruntime "runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/api/metrics"
	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/engine/trace"
	"github.com/trellis-k8s/trellis/internal/fixture"
	"github.com/trellis-k8s/trellis/internal/fixture/heavy"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// writer sends writes to handlers without the other steps of a request.
type writer struct {
	t        testing.TB
	handlers *Handlers
	request  request.Request // the same for all writes
}

// newWriter returns a writer for a server with the namespace default and the kind CronTab.
func newWriter(t testing.TB) *writer {
	e := fixture.Open(t, kinds.Config{}).Engine
	w := &writer{t, &Handlers{Engine: e, Metrics: metrics.New(e, new(atomic.Int64), nil)},
		request.Request{Limits: request.NewLimits(0, 0), Negotiator: encoding.NewNegotiator(false)}}
	w.request.Attributes.User = &user.DefaultInfo{Name: "jane"}
	w.do("POST", "/api/v1/namespaces", `{"metadata":{"name":"default"}}`, contentJSON)
	w.do("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{
"metadata":{"name":"crontabs.stable.example.com"},"spec":{"group":"stable.example.com","scope":"Namespaced",
"names":{"plural":"crontabs","kind":"CronTab"},"versions":[{"name":"v1","served":true,"storage":true,
"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object"}}}}}]}}`, contentJSON)
	return w
}

func (w *writer) find(group, version, plural string) *resource.Version {
	w.t.Helper()
	catalog, err := w.handlers.Engine.Live.Current(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return catalog.Find(group, version, plural)
}

// call returns a write that has passed the other steps.
func (w *writer) call(method, path, body, contentType string) call {
	w.t.Helper()
	q := w.request
	q.W, q.R = httptest.NewRecorder(), httptest.NewRequest(method, path, strings.NewReader(body))
	q.R.Header.Set("Content-Type", contentType)
	q.Parse(method, q.R.URL.Path)
	q.Kind = w.find(q.Group, q.Version, q.Plural)
	q.Media, _ = q.Find("", q.Kind)
	return call{w.handlers, &q}
}

// do sends a write.
func (w *writer) do(method, path, body, contentType string) {
	w.t.Helper()
	q := w.call(method, path, body, contentType)
	if err := w.handlers.Serve(q.Request); err != nil {
		q.Fail(err)
	}
	q.ReleaseMemory()
	q.Slot.Release()
}

const (
	contentJSON     = "application/json"
	contentProtobuf = "application/vnd.kubernetes.protobuf"
)

// TestWebhookKindsShareBudget checks that heavy bodies of kinds with a conversion webhook take at most half of the
// budget.
func TestWebhookKindsShareBudget(t *testing.T) {
	l := request.NewLimits(50*time.Millisecond, 8<<20)
	requestOf := func(c *resource.Custom) call {
		q := &request.Request{R: httptest.NewRequest("POST", "/", nil), Limits: l}
		q.Kind = &resource.Version{Definition: &resource.Definition{Custom: c}}
		q.Verb, q.Attributes.User = request.VerbCreate, &user.DefaultInfo{Name: "jane"}
		return call{Request: q}
	}
	converted := &resource.Custom{Conversion: resource.Conversion{Webhook: "{}"}}
	body := []byte(strings.Repeat("{", 6_000)) // weighs between a quarter and a half of the budget
	var held []call
	for i, c := range []*resource.Custom{converted, converted, {}, nil} {
		q := requestOf(c)
		if err := q.acquireBody(body); (err != nil) != (i == 1) {
			t.Errorf("request %d: got error %v, want an error only for request 1", i, err)
		}
		q.Slot.Release()
		held = append(held, q)
		if i > 1 {
			q.ReleaseMemory()
		}
	}
	for _, q := range held {
		q.ReleaseMemory()
	}
	for _, webhook := range []bool{false, true} {
		q := &request.Request{R: httptest.NewRequest("GET", "/", nil), Limits: l}
		if err := q.AcquireMemory(l.Memory, webhook); err != nil {
			t.Errorf("a request still holds a part of the budget: %v", err)
		}
		q.ReleaseMemory()
	}
}

// TestWeightsCoverWrites checks that the weight of a write is at least its peak memory, and at most about 16 times as
// much. It tests the kinds whose bodies grow the most when they are decoded, and the kinds whose memory is closest to
// their weight.
func TestWeightsCoverWrites(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector needs additional memory")
	}
	h := newWriter(t)
	const crontabs = "/apis/stable.example.com/v1/namespaces/default/crontabs"
	const n = 4000
	list := func(item string) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	var entries []string
	for i := range n {
		entries = append(entries, fmt.Sprintf(`"k%d":""`, i))
	}
	const pods, maps = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/configmaps"
	body := func(kind, spec string) string { return `{"kind":"` + kind + `","metadata":{"name":"x"},` + spec + `}` }
	protobufBody := func(group, version, plural, kind, path string) string {
		apiVersion := strings.TrimPrefix(group+"/"+version, "/")
		for _, b := range heavy.RepeatedFields(reflect.TypeOf(h.find(group, version, plural).Type.New()).Elem()) {
			if strings.HasSuffix(b.Path, path) {
				return string(b.Make(apiVersion, kind, "x", n))
			}
		}
		t.Fatalf("kind %s has no field %s", kind, path)
		return ""
	}
	for _, c := range []struct{ method, path, body, as string }{
		{"POST", pods, protobufBody("", "v1", "pods", "Pod", "Spec.Containers"), contentProtobuf},
		{"POST", pods, body("Pod", `"spec":{"containers":[`+list("{}")+`]}`), contentJSON},
		{"POST", pods, body("Pod", `"spec":{"containers":[`+
			list(`{"livenessProbe":{"exec":{}},"resources":{"limits":{"a":"1"}}}`)+`]}`), contentJSON},
		{"POST", pods + "?trace=true&dryRun=All", body("Pod", `"spec":{"containers":[`+list("{}")+`]}`), contentJSON},
		{"POST", maps, protobufBody("", "v1", "configmaps", "ConfigMap", "Finalizers"), contentProtobuf},
		{"POST", maps, body("ConfigMap", `"data":{`+strings.Join(entries, ",")+`}`), contentJSON},
		{"PATCH", maps + "/x", `{"data":{"a":"b"}}`, "application/merge-patch+json"},
		{"POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
			protobufBody("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
				"Items.JSONSchemas"), contentProtobuf},
		{"POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
			protobufBody("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings",
				"ValidatingAdmissionPolicyBinding", "ExcludeResourceRules"), contentProtobuf},
		{"POST", crontabs, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"m"},"spec":{` +
			strings.Join(entries, ",") + `}}`, contentJSON},
	} {
		q := h.call(c.method, c.path, c.body, c.as)
		if q.wantsTrace() {
			q.Trace = &trace.Trace{}
		}
		if err := q.acquireBody([]byte(c.body)); err != nil {
			t.Fatal(err)
		}
		weight := q.Weight
		q.ReleaseMemory()
		q.Slot.Release()
		memory := peakHeapGrowth(func() { h.do(c.method, c.path, c.body, c.as) })
		t.Logf("%s %s: body %d KiB, memory %d KiB, weight %d KiB",
			c.method, c.path, len(c.body)>>10, memory>>10, weight>>10)
		if memory > weight+1<<20 {
			t.Errorf("%s %s: got weight %d, want at least the memory, %d bytes", c.method, c.path, weight, memory)
		}
		if weight > 16*memory+4<<20 {
			t.Errorf("%s %s: got weight %d, want about the memory, %d bytes", c.method, c.path, weight, memory)
		}
	}
}

// peakHeapGrowth returns the peak growth of the live heap while f runs, in bytes. It lets the garbage collector run
// often, because the live heap is measured at each collection.
func peakHeapGrowth(f func()) int64 {
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	goruntime.GC()
	goruntime.GC()
	before := liveHeap()
	stop, peak := make(chan bool), make(chan int64)
	go func() {
		most := before
		for {
			select {
			case <-stop:
				peak <- most
				return
			case <-time.After(200 * time.Microsecond):
				most = max(most, liveHeap())
			}
		}
	}()
	f()
	close(stop)
	return <-peak - before
}

func liveHeap() int64 {
	s := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	runtimemetrics.Read(s)
	return int64(s[0].Value.Uint64())
}
