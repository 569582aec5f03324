package api

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/fixture/heavy"
)

const (
	contentJSON     = "Content-Type: application/json"
	contentYAML     = "Content-Type: application/yaml"
	contentProtobuf = "Content-Type: application/vnd.kubernetes.protobuf"
)

// wantBudgetFree checks that no request holds a part of the budget after a step of the test.
func (h *harness) wantBudgetFree(after string) {
	h.t.Helper()
	l := h.server.limits
	for _, webhook := range []bool{false, true} {
		q := &request.Request{R: newRequest("GET", "/", ""), Limits: l}
		if q.AcquireMemory(l.Memory, webhook) != nil {
			h.t.Fatalf("a request still holds a part of the budget after %s", after)
		}
		q.ReleaseMemory()
	}
}

// holdMemory takes the whole memory budget and returns the function that releases it.
func (h *harness) holdMemory() (release func()) {
	h.t.Helper()
	q := &request.Request{R: newRequest("GET", "/", ""), Limits: h.server.limits}
	if err := q.AcquireMemory(h.server.limits.Memory, false); err != nil {
		h.t.Fatal(err)
	}
	return q.ReleaseMemory
}

// TestLargeBodiesWaitForMemory checks that a request with a heavy body waits for memory and gets 503 with
// Retry-After at its deadline. A request with a light body does not wait. Each request releases its memory, even
// when it fails.
func TestLargeBodiesWaitForMemory(t *testing.T) {
	h := withCronTabs(t, func(c *Config) { c.RequestTimeout = 100 * time.Millisecond })
	long := strings.Repeat("x", request.MaxFreeWeight)
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
	release := h.holdMemory()
	for _, c := range large {
		w := h.want(http.StatusServiceUnavailable, c.method, c.path, c.body, c.as)
		if w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), `"reason":"ServiceUnavailable"`) {
			t.Errorf("%s %s: got Retry-After %q, %s, want 1 and ServiceUnavailable", c.method, c.as,
				w.Header().Get("Retry-After"), w.Body)
		}
	}
	h.want(http.StatusOK, "PATCH", crontabs+"/a", `{"spec":{"image":"z"}}`, asMerge)
	h.want(http.StatusOK, "GET", crontabs+"/a", "")
	release()
	h.wantBudgetFree("waiting")
	h.server.limits.Timeout = time.Minute
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
	h.server.limits.Timeout = 50 * time.Millisecond
	h.holdMemory()
	h.want(http.StatusServiceUnavailable, "PATCH", maps+"/x", `{"data":{"a":"b"}}`,
		"Content-Type: application/merge-patch+json")
}

// bodiesOf returns the bodies of a built-in kind that need the most memory in relation to their size.
func bodiesOf(t *testing.T, h *harness, group, version, plural string) []heavy.Body {
	t.Helper()
	catalog, err := h.engine.Live.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return heavy.RepeatedFields(reflect.TypeOf(catalog.Find(group, version, plural).Type.New()).Elem())
}
