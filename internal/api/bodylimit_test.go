package api

import (
	"fmt"
	"net/http"
	"reflect"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/fixture/heavy"
	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	contentJSON     = "Content-Type: application/json"
	contentYAML     = "Content-Type: application/yaml"
	contentProtobuf = "Content-Type: application/vnd.kubernetes.protobuf"
)

// wantBudgetFree checks that no request holds a part of the budget after a step of the test.
func (h *harness) wantBudgetFree(after string) {
	h.t.Helper()
	b := &h.server.budget
	if !b.all.TryAcquire(b.size) || !b.webhooks.TryAcquire(b.size/webhookShare) {
		h.t.Fatalf("a request still holds a part of the budget after %s", after)
	}
	b.all.Release(b.size)
	b.webhooks.Release(b.size / webhookShare)
}

// TestLargeBodiesWaitForMemory checks that a request with a heavy body waits for memory and gets 503 with
// Retry-After at its deadline. A request with a light body does not wait. Each request releases its memory, even
// when it fails.
func TestLargeBodiesWaitForMemory(t *testing.T) {
	h := withCronTabs(t, func(c *Config) { c.RequestTimeout = 100 * time.Millisecond })
	long := strings.Repeat("x", maxFreeWeight)
	tab := func(name string) string {
		return `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"` + name +
			`"},"spec":{"image":"` + long + `"}}`
	}
	const (
		asApply     = "Content-Type: application/apply-patch+yaml"
		asMerge     = "Content-Type: application/merge-patch+json"
		asJSONPatch = "Content-Type: application/json-patch+json"
	)
	large := []struct {
		code                   int
		method, path, body, as string
	}{
		{201, "POST", crontabs, tab("b"), contentJSON},
		{201, "POST", crontabs, "\n# " + long + "\n" + tab("c"), contentYAML},
		{200, "PATCH", crontabs + "/b?fieldManager=m&force=true", tab("b"), asApply},
		{200, "PATCH", crontabs + "/b?fieldManager=m&force=true", "# " + long + "\n" + tab("b"), asApply},
		{200, "PATCH", crontabs + "/b", `{"spec":{"image":"y` + long + `"}}`, asMerge},
		{422, "PATCH", crontabs + "/b", `{"spec":{"image":["` + long + `"]}}`, asMerge},
		{422, "PATCH", crontabs + "/a", `[{"op":"copy","from":"/spec","path":"/spec/image"}]`, asJSONPatch},
		{400, "POST", crontabs, "a: &x 1\nb: *x\n", contentYAML},
		{400, "POST", crontabs, `{"` + long, contentJSON},
		{400, "DELETE", crontabs + "/b", `{"` + long, contentJSON},
		{200, "DELETE", crontabs + "/c", `{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["All"],"x":"` + long +
			`"}`, contentJSON},
	}
	h.server.budget.all.TryAcquire(defaultBudget)
	for _, c := range large {
		w := h.want(http.StatusServiceUnavailable, c.method, c.path, c.body, c.as)
		if w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), `"reason":"ServiceUnavailable"`) {
			t.Errorf("%s %s: got Retry-After %q, %s, want 1 and ServiceUnavailable", c.method, c.as,
				w.Header().Get("Retry-After"), w.Body)
		}
	}
	h.want(http.StatusOK, "PATCH", crontabs+"/a", `{"spec":{"image":"z"}}`, asMerge)
	h.want(http.StatusOK, "GET", crontabs+"/a", "")
	h.server.budget.all.Release(defaultBudget)
	h.wantBudgetFree("waiting")
	h.server.config.RequestTimeout = time.Minute
	for _, c := range large {
		h.want(c.code, c.method, c.path, c.body, c.as)
		h.wantBudgetFree(c.method + " " + c.as)
	}
}

// TestBodiesBeyondTheBudget checks that a body is refused if its weight exceeds the whole budget. The error message
// contains the weight and the limit. The test covers all encodings and traced requests. The weight of a patch
// includes the stored object.
func TestBodiesBeyondTheBudget(t *testing.T) {
	const size = 8 << 20
	h := newHarness(t, func(c *Config) { c.MemoryBudget = size })
	pods := "/api/v1/namespaces/default/pods"
	pod := func(n int) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"containers":[{}` +
			strings.Repeat(",{}", n) + `]}}`
	}
	bodies := bodiesOf(t, h, "", "v1", "pods")
	for name, c := range map[string]struct{ path, body, as string }{
		"protobuf": {pods, string(bodies[0].Make("v1", "Pod", "x", 10_000)), contentProtobuf},
		"JSON":     {pods, pod(10_000), contentJSON},
		"YAML":     {pods, "# YAML\n" + pod(6_000), contentYAML},
	} {
		w := h.want(http.StatusRequestEntityTooLarge, "POST", c.path, c.body, c.as)
		if text := message(w); !strings.HasPrefix(text, "Request entity too large: the body takes up to ") ||
			!strings.HasSuffix(text, fmt.Sprintf(" bytes of memory, the limit is %d", size)) {
			t.Errorf("%s: got %s, want the weight and the limit %d", name, text, size)
		}
		h.wantBudgetFree(name)
	}
	// A trace doubles the weight, because it contains the response.
	traced := h.want(http.StatusOK, "POST", pods+"?dryRun=All&trace=true", pod(2_000), contentJSON)
	if text := traced.Body.String(); !strings.Contains(text, `"code":413`) ||
		!strings.Contains(text, fmt.Sprintf("the limit is %d", size)) {
		t.Errorf("trace: got %.300s, want code 413 and the limit %d", text, size)
	}
	h.wantBudgetFree("trace")
	h.want(http.StatusUnprocessableEntity, "POST", pods, pod(1_500), contentJSON)
	var data strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&data, `,"k%d":""`, i)
	}
	maps := "/api/v1/namespaces/default/configmaps"
	h.want(http.StatusCreated, "POST", maps, `{"metadata":{"name":"x"},"data":{"a":""`+data.String()+`}}`, contentJSON)
	h.want(http.StatusRequestEntityTooLarge, "PATCH", maps+"/x",
		`[{"op":"add","path":"/metadata/ownerReferences","value":[`+strings.Repeat("1,", 8_000)+`1]}]`,
		"Content-Type: application/json-patch+json")
	h.wantBudgetFree("a JSON patch")
	h.server.config.RequestTimeout = 50 * time.Millisecond
	h.server.budget.all.TryAcquire(size)
	h.want(http.StatusServiceUnavailable, "PATCH", maps+"/x", `{"data":{"a":"b"}}`,
		"Content-Type: application/merge-patch+json")
}

// TestWebhookKindsShareBudget checks that heavy bodies of kinds with a conversion webhook take at most half of the
// budget.
func TestWebhookKindsShareBudget(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.RequestTimeout = 50 * time.Millisecond; c.MemoryBudget = 8 << 20 })
	requestOf := func(c *resource.Custom) *request {
		q := &request{server: h.server, r: newRequest("POST", crontabs, ""),
			v: &resource.Version{Definition: &resource.Definition{Custom: c}}}
		q.verb, q.attributes.User = verbCreate, &user.DefaultInfo{Name: "jane"}
		return q
	}
	converted := &resource.Custom{Conversion: resource.Conversion{Webhook: "{}"}}
	body := []byte(strings.Repeat("{", 6_000)) // weighs between a quarter and a half of the budget
	var held []*request
	for i, c := range []*resource.Custom{converted, converted, {}, nil} {
		q := requestOf(c)
		if err := q.acquireBody(body); (err != nil) != (i == 1) {
			t.Errorf("request %d: got error %v, want an error only for request 1", i, err)
		}
		q.slot.Release()
		held = append(held, q)
		if i > 1 {
			q.releaseBody()
		}
	}
	for _, q := range held {
		q.releaseBody()
	}
	h.wantBudgetFree("webhooks")
}

// bodiesOf returns the bodies of a built-in kind that need the most memory in relation to their size.
func bodiesOf(t *testing.T, h *harness, group, version, plural string) []heavy.Body {
	t.Helper()
	catalog, err := h.server.live.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return heavy.RepeatedFields(reflect.TypeOf(catalog.Find(group, version, plural).Type.New()).Elem())
}

// TestWeightsCoverWrites checks that the weight of a write is at least its peak memory, and at most about 16 times as
// much. It tests the kinds whose bodies grow the most when they are decoded, and the kinds whose memory is closest to
// their weight.
func TestWeightsCoverWrites(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector needs additional memory")
	}
	h := withCronTabs(t)
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
		for _, b := range bodiesOf(t, h, group, version, plural) {
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
		{"PATCH", maps + "/x", `{"data":{"a":"b"}}`, "Content-Type: application/merge-patch+json"},
		{"POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
			protobufBody("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
				"Items.JSONSchemas"), contentProtobuf},
		{"POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
			protobufBody("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings",
				"ValidatingAdmissionPolicyBinding", "ExcludeResourceRules"), contentProtobuf},
		{"POST", crontabs, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"m"},"spec":{` +
			strings.Join(entries, ",") + `}}`, contentJSON},
	} {
		r := newRequest(c.method, c.path, c.body, c.as)
		q := &request{server: h.server, r: r}
		q.attributes.User = &user.DefaultInfo{Name: "jane"}
		q.parse(c.method, r.URL.Path)
		catalog, err := h.server.live.Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		q.v = catalog.Find(q.group, q.version, q.plural)
		if q.wantsTrace() {
			q.trace = &Traced{}
		}
		if err := q.acquireBody([]byte(c.body)); err != nil {
			t.Fatal(err)
		}
		weight := q.weight
		q.releaseBody()
		q.slot.Release()
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
	runtime.GC()
	runtime.GC()
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
