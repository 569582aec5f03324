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

const contentJSON, contentYAML, contentProtobuf = "Content-Type: application/json", "Content-Type: application/yaml", "Content-Type: application/vnd.kubernetes.protobuf"

// wantBudgetFree fails the test if a request still holds a part of the budget.
func (h *harness) wantBudgetFree(after string) {
	h.t.Helper()
	b := &h.server.budget
	if !b.all.TryAcquire(b.size) || !b.webhooks.TryAcquire(b.size/webhookShare) {
		h.t.Fatalf("after %s, something is still held", after)
	}
	b.all.Release(b.size)
	b.webhooks.Release(b.size / webhookShare)
}

// A heavy body waits for memory and gets 503 with Retry-After at its deadline, a light one does not wait; memory that was taken is
// given back whatever comes of the request.
func TestLargeBodiesWaitForMemory(t *testing.T) {
	h := withCronTabs(t, func(c *Config) { c.RequestTimeout = 100 * time.Millisecond })
	long := strings.Repeat("x", maxFreeWeight)
	tab := func(name string) string {
		return `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"` + name + `"},"spec":{"image":"` + long + `"}}`
	}
	const asApply, asMerge, asJSONPatch = "Content-Type: application/apply-patch+yaml", "Content-Type: application/merge-patch+json", "Content-Type: application/json-patch+json"
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
		{200, "DELETE", crontabs + "/c", `{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["All"],"x":"` + long + `"}`, contentJSON},
	}
	h.server.budget.all.TryAcquire(defaultBudget)
	for _, c := range large {
		w := h.want(http.StatusServiceUnavailable, c.method, c.path, c.body, c.as)
		if w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), `"reason":"ServiceUnavailable"`) {
			t.Errorf("%s %s: Retry-After %q, %s", c.method, c.as, w.Header().Get("Retry-After"), w.Body)
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

// A body that no budget of this size has memory for is refused with its weight and the limit, in whatever encoding, traced or not; a
// heavy stored object counts where a small patch decodes it.
func TestBodiesBeyondTheBudget(t *testing.T) {
	const size = 8 << 20
	h := newHarness(t, func(c *Config) { c.MemoryBudget = size })
	pods := "/api/v1/namespaces/default/pods"
	pod := func(n int) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"containers":[{}` + strings.Repeat(",{}", n) + `]}}`
	}
	of := bodiesOf(t, h, "", "v1", "pods")
	for name, c := range map[string]struct{ path, body, as string }{
		"protobuf": {pods, string(of[0].Make("v1", "Pod", "x", 10_000)), contentProtobuf},
		"JSON":     {pods, pod(10_000), contentJSON},
		"YAML":     {pods, "# it is\n" + pod(6_000), contentYAML},
	} {
		w := h.want(http.StatusRequestEntityTooLarge, "POST", c.path, c.body, c.as)
		if text := message(w); !strings.HasPrefix(text, "Request entity too large: the body takes up to ") || !strings.HasSuffix(text, fmt.Sprintf(" bytes of memory, the limit is %d", size)) {
			t.Errorf("%s: %s", name, text)
		}
		h.wantBudgetFree(name)
	}
	traced := h.want(http.StatusOK, "POST", pods+"?dryRun=All&trace=true", pod(2_000), contentJSON) // a trace holds the answer
	if text := traced.Body.String(); !strings.Contains(text, `"code":413`) || !strings.Contains(text, fmt.Sprintf("the limit is %d", size)) {
		t.Errorf("trace: %.300s", text)
	}
	h.wantBudgetFree("trace")
	h.want(http.StatusUnprocessableEntity, "POST", pods, pod(1_500), contentJSON)
	var data strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&data, `,"k%d":""`, i)
	}
	maps := "/api/v1/namespaces/default/configmaps"
	h.want(http.StatusCreated, "POST", maps, `{"metadata":{"name":"x"},"data":{"a":""`+data.String()+`}}`, contentJSON)
	h.want(http.StatusRequestEntityTooLarge, "PATCH", maps+"/x", `[{"op":"add","path":"/metadata/ownerReferences","value":[`+strings.Repeat("1,", 8_000)+`1]}]`, "Content-Type: application/json-patch+json")
	h.wantBudgetFree("a JSON patch")
	h.server.config.RequestTimeout = 50 * time.Millisecond
	h.server.budget.all.TryAcquire(size)
	h.want(http.StatusServiceUnavailable, "PATCH", maps+"/x", `{"data":{"a":"b"}}`, "Content-Type: application/merge-patch+json")
}

// Heavy bodies that wait for a webhook take at most a half of the budget.
func TestWebhookKindsShareBudget(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.RequestTimeout = 50 * time.Millisecond; c.MemoryBudget = 8 << 20 })
	of := func(c *resource.Custom) *request {
		q := &request{server: h.server, r: newRequest("POST", crontabs, ""), v: &resource.Version{Definition: &resource.Definition{Custom: c}}}
		q.verb, q.attributes.User = verbCreate, &user.DefaultInfo{Name: "jane"}
		return q
	}
	hooked := &resource.Custom{Conversion: resource.Conversion{Webhook: "{}"}}
	body := []byte(strings.Repeat("{", 6_000)) // more than a quarter, less than a half
	var held []*request
	for i, c := range []*resource.Custom{hooked, hooked, {}, nil} {
		q := of(c)
		if err := q.acquireBody(body); (err != nil) != (i == 1) {
			t.Errorf("request %d: %v", i, err)
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

func bodiesOf(t *testing.T, h *harness, group, version, plural string) []heavy.Body {
	t.Helper()
	catalog, err := h.server.live.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return heavy.RepeatedFields(reflect.TypeOf(catalog.Find(group, version, plural).Type.New()).Elem())
}

// A write weighs at least the memory that it takes at its peak, and not many times as much. The kinds are those that grow the most, and
// those that came closest to their weight of all kinds.
func TestWeightsCoverWrites(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector takes memory of its own")
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
	made := func(group, version, plural, kind, path string) string {
		apiVersion := strings.TrimPrefix(group+"/"+version, "/")
		for _, b := range bodiesOf(t, h, group, version, plural) {
			if strings.HasSuffix(b.Path, path) {
				return string(b.Make(apiVersion, kind, "x", n))
			}
		}
		t.Fatalf("%s has no %s", kind, path)
		return ""
	}
	for _, c := range []struct{ method, path, body, as string }{
		{"POST", pods, made("", "v1", "pods", "Pod", "Spec.Containers"), contentProtobuf},
		{"POST", pods, body("Pod", `"spec":{"containers":[`+list("{}")+`]}`), contentJSON},
		{"POST", pods, body("Pod", `"spec":{"containers":[`+list(`{"livenessProbe":{"exec":{}},"resources":{"limits":{"a":"1"}}}`)+`]}`), contentJSON},
		{"POST", pods + "?trace=true&dryRun=All", body("Pod", `"spec":{"containers":[`+list("{}")+`]}`), contentJSON},
		{"POST", maps, made("", "v1", "configmaps", "ConfigMap", "Finalizers"), contentProtobuf},
		{"POST", maps, body("ConfigMap", `"data":{`+strings.Join(entries, ",")+`}`), contentJSON},
		{"PATCH", maps + "/x", `{"data":{"a":"b"}}`, "Content-Type: application/merge-patch+json"},
		{"POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", made("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", "Items.JSONSchemas"), contentProtobuf},
		{"POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
			made("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", "ExcludeResourceRules"), contentProtobuf},
		{"POST", crontabs, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"m"},"spec":{` + strings.Join(entries, ",") + `}}`, contentJSON},
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
		took := peakHeapGrowth(func() { h.do(c.method, c.path, c.body, c.as) })
		t.Logf("%s %s: %d KiB took %d KiB and weigh %d KiB", c.method, c.path, len(c.body)>>10, took>>10, weight>>10)
		if took > weight+1<<20 {
			t.Errorf("%s %s: took %d bytes and weighs %d", c.method, c.path, took, weight)
		}
		if weight > 16*took+4<<20 {
			t.Errorf("%s %s: took %d bytes and weighs %d", c.method, c.path, took, weight)
		}
	}
}

// peakHeapGrowth is how much more than before lives while f runs, by collections that come quickly.
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
