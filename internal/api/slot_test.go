package api

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/utils/clock"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/compute"
)

// allSlots acquires all free slots, and returns their number and the function that releases them.
func (h *harness) allSlots() (n int, release func()) {
	var held []*compute.Slot
	other := &request.Request{Limits: h.server.limits,
		Attributes: access.Attributes{User: &user.DefaultInfo{Name: "other"}}}
	for slot := other.NewSlot(); slot.TryAcquire(); slot = other.NewSlot() {
		held = append(held, slot)
	}
	return len(held), func() {
		for _, slot := range held {
			slot.Release()
		}
	}
}

// withFewSeats returns a server with two seats and a budget of 4 MiB. Requests of the user jane queue at a separate
// priority level.
func withFewSeats(t *testing.T) *harness {
	t.Helper()
	h := newHarness(t, func(c *Config) {
		c.MemoryBudget = 4 << 20
		c.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
		c.Fairness = flowcontrol.New(flowcontrol.Config{MaxReads: 1, MaxWrites: 1, RequestTimeout: time.Minute},
			c.Engine.Store.Head, clock.RealClock{})
	})
	queue := `{"type":"Queue","queuing":{"queues":1,"handSize":1,"queueLengthLimit":10}}`
	h.want(http.StatusCreated, "POST", flowAPI+"/prioritylevelconfigurations",
		strings.Replace(tightLevel, `{"type":"Reject"}`, queue, 1))
	h.want(http.StatusCreated, "POST", flowAPI+"/flowschemas", janesFlow)
	return h
}

// TestExpensiveRequestsWaitForSlots checks that expensive requests wait for a slot, and get 503 at their deadline. A
// request is expensive because of its body, its query, the number of objects it reads, or the format of its response.
// Inexpensive requests do not wait. With free slots all requests succeed and release their slot.
func TestExpensiveRequestsWaitForSlots(t *testing.T) {
	h := withCronTabs(t)
	const maps = "/api/v1/namespaces/default/configmaps"
	configMap := func(name string, size int) string {
		return `{"metadata":{"name":"` + name + `"},"data":{"a":"` + strings.Repeat("x", size) + `"}}`
	}
	h.want(http.StatusCreated, "POST", maps, configMap("large", 64<<10), contentJSON)
	for i := range 500 {
		h.want(http.StatusCreated, "POST", maps, configMap(fmt.Sprint("m-", i), 1), contentJSON)
	}
	selector := "?labelSelector=a%20in%20(" + strings.Repeat("x,", 8<<10) + "x)"
	const (
		asJSON     = "Accept: application/json"
		asYAML     = "Accept: application/yaml"
		asProtobuf = "Accept: application/vnd.kubernetes.protobuf"
	)
	requests := []struct {
		expensive                  bool
		code                       int
		method, path, body, header string
	}{
		{true, 201, "POST", maps + "?dryRun=All", configMap("b", 64<<10), contentJSON},
		{true, 200, "PATCH", maps + "/large", `{"data":{"b":"` + strings.Repeat("x", 64<<10) + `"}}`,
			"Content-Type: application/merge-patch+json"},
		{true, 200, "GET", crontabs + selector, "", asJSON},
		{true, 200, "GET", maps, "", asJSON},
		{true, 200, "GET", maps + "?limit=10&labelSelector=a", "", asJSON},
		{true, 200, "GET", maps + "?watch=true&timeoutSeconds=1", "", asJSON},
		{true, 200, "GET", maps + "?watch=true&timeoutSeconds=1&sendInitialEvents=true" +
			"&resourceVersionMatch=NotOlderThan&resourceVersion=1&allowWatchBookmarks=true", "", asJSON},
		{true, 200, "GET", maps + "/large", "", asYAML},
		{true, 200, "GET", maps + "/large?pretty=true", "", asJSON},
		{true, 200, "GET", maps + "?limit=1", "", asProtobuf},
		{false, 201, "POST", maps + "?dryRun=All", configMap("b", 1), contentJSON},
		{false, 200, "GET", maps + "/large", "", asJSON},
		{false, 200, "GET", maps + "/m-1", "", asYAML},
		{false, 200, "GET", maps + "?limit=10", "", asJSON},
		{false, 200, "GET", crontabs, "", asJSON},
		{false, 200, "GET", maps + "?watch=true&timeoutSeconds=1&resourceVersion=1", "", asJSON},
	}
	all, release := h.allSlots()
	h.server.limits.Timeout = 50 * time.Millisecond
	for _, r := range requests {
		if !r.expensive {
			h.want(r.code, r.method, r.path, r.body, r.header)
			continue
		}
		w := h.want(http.StatusServiceUnavailable, r.method, r.path, r.body, r.header)
		if w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), "other expensive requests") {
			t.Errorf("%s %.100s: got Retry-After %q, %s, want 1 and the reason", r.method, r.path,
				w.Header().Get("Retry-After"), w.Body)
		}
	}
	release()
	h.server.limits.Timeout = time.Minute
	for _, r := range requests {
		h.want(r.code, r.method, r.path, r.body, r.header)
		free, release := h.allSlots()
		if release(); free != all {
			t.Fatalf("%s %.100s: got %d free slots after the request, want %d", r.method, r.path, free, all)
		}
	}
}

// TestRequestsWaitWithoutSeat checks that a request that waits for a slot holds no seat of its priority level. The
// bodies of waiting requests take at most their share of the budget.
func TestRequestsWaitWithoutSeat(t *testing.T) {
	h := withFewSeats(t)
	asJane := func(body string) int {
		r := newRequest("POST", "/api/v1/namespaces/default/configmaps", body, contentJSON)
		w := httptest.NewRecorder()
		h.server.ServeHTTP(w, r.WithContext(access.WithUser(t.Context(), &user.DefaultInfo{Name: "jane"})))
		return w.Code
	}
	_, release := h.allSlots()
	codes := make(chan int)
	for range 5 {
		go func() {
			codes <- asJane(`{"metadata":{"generateName":"l-"},"data":{"a":"` + strings.Repeat("x", 800<<10) + `"}}`)
		}()
	}
	for range 3 { // the bodies of the other two fit into half of the budget
		if code := <-codes; code != http.StatusTooManyRequests {
			t.Errorf("waiting request: got %d, want 429", code)
		}
	}
	if code := asJane(`{"metadata":{"name":"small"}}`); code != http.StatusCreated {
		t.Errorf("small request: got %d, want 201", code)
	}
	release()
	for range 2 {
		if code := <-codes; code != http.StatusCreated {
			t.Errorf("waiting request: got %d, want 201", code)
		}
	}
}

// TestSlowBodiesHoldNoSeat checks that requests whose bodies arrive slowly hold no seat, so that another request of the
// priority level can run. A request takes a seat again when the rest of its body has arrived. If such bodies take too
// much memory, the newest request gets 429.
func TestSlowBodiesHoldNoSeat(t *testing.T) {
	h := withFewSeats(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.server.ServeHTTP(w, r.WithContext(access.WithUser(r.Context(), &user.DefaultInfo{Name: "jane"})))
	}))
	t.Cleanup(server.Close)
	post := func(body io.Reader) int {
		resp, err := http.Post(server.URL+"/api/v1/namespaces/default/configmaps", "application/json", body)
		if err != nil {
			t.Error(err)
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	codes, bodies := make(chan int), []*io.PipeWriter{}
	for range 4 { // three of the bodies fit into half of the budget
		out, in := io.Pipe()
		bodies = append(bodies, in)
		go func() { codes <- post(out) }()
		if _, err := in.Write([]byte(`{"metadata":{"generateName":"s-"},"data":{"a":"` +
			strings.Repeat("x", 600<<10))); err != nil {
			t.Fatal(err)
		}
	}
	if code := <-codes; code != http.StatusTooManyRequests {
		t.Errorf("body that exceeds the limit: got %d, want 429", code)
	}
	if code := post(strings.NewReader(`{"metadata":{"name":"small"}}`)); code != http.StatusCreated {
		t.Errorf("small body: got %d, want 201", code)
	}
	for _, in := range bodies {
		go func() { _, _ = in.Write([]byte(`"}}`)); _ = in.Close() }()
	}
	for range 3 {
		if code := <-codes; code != http.StatusCreated {
			t.Errorf("slow body: got %d, want 201", code)
		}
	}
}
