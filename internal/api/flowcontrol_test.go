package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
)

const (
	flowAPI    = "/apis/flowcontrol.apiserver.k8s.io/v1"
	tightLevel = `{"metadata":{"name":"tight"},"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":900,
"limitResponse":{"type":"Reject"}}}}`
	janesFlow = `{"metadata":{"name":"janes"},"spec":{"matchingPrecedence":500,
"priorityLevelConfiguration":{"name":"tight"},"rules":[{
"subjects":[{"kind":"User","user":{"name":"jane"}}],"resourceRules":[{"verbs":["*"],"apiGroups":["*"],
"resources":["*"],"namespaces":["*"],"clusterScope":true}]}]}}`
)

// blockingAuthorizer is an Authorizer that blocks jane's requests for an object named held. It sends a value on the
// channel called, and then receives from the channel proceed. At that time the request already holds its seat.
type blockingAuthorizer struct{ called, proceed chan struct{} }

func (h *blockingAuthorizer) Authorize(
	ctx context.Context, a authorizer.Attributes,
) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "jane" && a.GetName() == "held" {
		h.called <- struct{}{}
		<-h.proceed
	}
	return authorizer.DecisionAllow, "", nil
}

// asJane sends a GET request as the user jane.
func asJane(ctx context.Context, h *harness, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.server.ServeHTTP(w, newRequest("GET", path, "").WithContext(access.WithUser(ctx,
		&user.DefaultInfo{Name: "jane"})))
	return w
}

// TestPriorityAndFairness checks the seats of a priority level with one seat. A request that gets no seat is
// refused with upstream's response. Every response has the UIDs of the FlowSchema and the priority level. A request
// holds its seat until it ends, and a watch until its initial events are sent. Other long-running requests need no
// seat.
func TestPriorityAndFairness(t *testing.T) {
	blocking := &blockingAuthorizer{make(chan struct{}), make(chan struct{})}
	h := withCronTabs(t, func(c *Config) {
		c.Authorizer = blocking
		c.Fairness = flowcontrol.New(flowcontrol.Config{MaxReads: 1, RequestTimeout: time.Minute}, c.Engine.Store.Head,
			clock.RealClock{})
	})
	level := tree(t, h.want(201, "POST", flowAPI+"/prioritylevelconfigurations", tightLevel).Body)
	flow := tree(t, h.want(201, "POST", flowAPI+"/flowschemas", janesFlow).Body)
	ofJane := func(w *httptest.ResponseRecorder, code int) {
		t.Helper()
		if w.Code != code || w.Header().Get("X-Kubernetes-PF-FlowSchema-UID") != at(flow, "metadata", "uid") ||
			w.Header().Get("X-Kubernetes-PF-PriorityLevel-UID") != at(level, "metadata", "uid") {
			t.Errorf("got %d %v %s, want %d and the UIDs", w.Code, w.Header(), w.Body, code)
		}
	}
	first := make(chan *httptest.ResponseRecorder)
	go func() { first <- asJane(t.Context(), h, crontabs+"/held") }()
	<-blocking.called
	refused := asJane(t.Context(), h, crontabs+"/a")
	ofJane(refused, http.StatusTooManyRequests)
	if got := refused.Header(); refused.Body.String() != "Too many requests, please try again later.\n" ||
		got.Get("Retry-After") != "1" || got.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("got %v %s, want upstream's response for too many requests", got, refused.Body)
	}
	ofJane(asJane(t.Context(), h, crontabs+"?watch=1"), http.StatusTooManyRequests)
	if w := asJane(t.Context(), h, "/api/v1/namespaces/default/pods/a/log"); w.Code != 404 ||
		w.Header().Get("X-Kubernetes-PF-FlowSchema-UID") != "" {
		t.Errorf("log: got %d %v, want 404 without a FlowSchema", w.Code, w.Header())
	}
	h.want(200, "GET", crontabs+"/a", "")
	close(blocking.proceed)
	ofJane(<-first, 404)
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan *httptest.ResponseRecorder)
	go func() { watched <- asJane(ctx, h, crontabs+"?watch=1") }()
	for h.server.metrics.Watches.Load() == 0 {
		runtime.Gosched()
	}
	// The watch holds its seat until its initial events are sent.
	for asJane(t.Context(), h, crontabs+"/a").Code != 200 {
		runtime.Gosched()
	}
	cancel()
	ofJane(<-watched, 200)
	ofJane(asJane(t.Context(), h, crontabs+"/a"), 200)
	ofJane(asJane(t.Context(), h, crontabs+"/a"), 200)
}

// TestDumps checks the dumps of API Priority and Fairness. A caller needs a role that permits the exact path. Other
// paths return 404, and so do all paths if API Priority and Fairness is disabled.
func TestDumps(t *testing.T) {
	const path = "/debug/api_priority_and_fairness/"
	h := newHarness(t)
	for name, columns := range map[string]string{
		"dump_priority_levels": "PriorityLevelName, ActiveQueues, ",
		"dump_queues":          "PriorityLevelName, Index,",
		"dump_requests":        "PriorityLevelName, FlowSchemaName, QueueIndex, ",
	} {
		w := h.want(http.StatusOK, "GET", path+name, "")
		if !strings.HasPrefix(w.Body.String(), columns) ||
			w.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%s: got %v %s, want text that starts with %s", name, w.Header(), w.Body, columns)
		}
		if w := asJane(t.Context(), h, path+name); w.Code != http.StatusForbidden ||
			!strings.Contains(w.Body.String(), `cannot get path \"`+path+name+`\"`) {
			t.Errorf("%s: got %d %s, want 403", name, w.Code, w.Body)
		}
	}
	h.wantText(http.StatusOK, path+"dump_requests, ", "GET", path+"dump_requests?includeRequestDetails=yes", "")
	for _, missing := range []string{"", "dump_nothing", "dump_queues/"} {
		h.want(http.StatusNotFound, "GET", path+missing, "")
	}
	newHarness(t, func(c *Config) { c.Fairness = nil }).want(http.StatusNotFound, "GET", path+"dump_queues", "")
}
