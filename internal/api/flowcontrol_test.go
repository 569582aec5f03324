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
	tightLevel = `{"metadata":{"name":"tight"},"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":900,"limitResponse":{"type":"Reject"}}}}`
	janesFlow  = `{"metadata":{"name":"janes"},"spec":{"matchingPrecedence":500,"priorityLevelConfiguration":{"name":"tight"},"rules":[{
"subjects":[{"kind":"User","user":{"name":"jane"}}],"resourceRules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"namespaces":["*"],"clusterScope":true}]}]}}`
)

// blockingAuthorizer is an Authorizer that says when it is asked, and waits; the request has its seat by then.
type blockingAuthorizer struct{ asked, answer chan struct{} }

func (h *blockingAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "jane" && a.GetName() == "held" {
		h.asked <- struct{}{}
		<-h.answer
	}
	return authorizer.DecisionAllow, "", nil
}

func asJane(ctx context.Context, h *harness, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.server.ServeHTTP(w, newRequest("GET", path, "").WithContext(access.WithUser(ctx, &user.DefaultInfo{Name: "jane"})))
	return w
}

// Who has no turn is told so as by upstream, and every answer says by which objects. A request has its seat until it ends, a watch until
// it has told what there is; what lasts and is no watch has none.
func TestPriorityAndFairness(t *testing.T) {
	wait := &blockingAuthorizer{make(chan struct{}), make(chan struct{})}
	h := withCronTabs(t, func(c *Config) {
		c.Authorizer = wait
		c.Fairness = flowcontrol.New(flowcontrol.Config{MaxReads: 1, RequestTimeout: time.Minute}, c.Engine.Store.Head, clock.RealClock{})
	})
	level := tree(t, h.want(201, "POST", flowAPI+"/prioritylevelconfigurations", tightLevel).Body)
	flow := tree(t, h.want(201, "POST", flowAPI+"/flowschemas", janesFlow).Body)
	ofJane := func(w *httptest.ResponseRecorder, code int) {
		t.Helper()
		if w.Code != code || w.Header().Get("X-Kubernetes-PF-FlowSchema-UID") != at(flow, "metadata", "uid") || w.Header().Get("X-Kubernetes-PF-PriorityLevel-UID") != at(level, "metadata", "uid") {
			t.Errorf("%d %v %s, want %d", w.Code, w.Header(), w.Body, code)
		}
	}
	first := make(chan *httptest.ResponseRecorder)
	go func() { first <- asJane(t.Context(), h, crontabs+"/held") }()
	<-wait.asked
	refused := asJane(t.Context(), h, crontabs+"/a")
	ofJane(refused, http.StatusTooManyRequests)
	if got := refused.Header(); refused.Body.String() != "Too many requests, please try again later.\n" || got.Get("Retry-After") != "1" || got.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("refused with %v %s", got, refused.Body)
	}
	ofJane(asJane(t.Context(), h, crontabs+"?watch=1"), http.StatusTooManyRequests)
	if w := asJane(t.Context(), h, "/api/v1/namespaces/default/pods/a/log"); w.Code != 404 || w.Header().Get("X-Kubernetes-PF-FlowSchema-UID") != "" {
		t.Errorf("a log: %d %v", w.Code, w.Header())
	}
	h.want(200, "GET", crontabs+"/a", "")
	close(wait.answer)
	ofJane(<-first, 404)
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan *httptest.ResponseRecorder)
	go func() { watched <- asJane(ctx, h, crontabs+"?watch=1") }()
	for h.server.metrics.watches.Load() == 0 {
		runtime.Gosched()
	}
	for asJane(t.Context(), h, crontabs+"/a").Code != 200 { // the watch has its seat for a moment
		runtime.Gosched()
	}
	cancel()
	ofJane(<-watched, 200)
	ofJane(asJane(t.Context(), h, crontabs+"/a"), 200)
	ofJane(asJane(t.Context(), h, crontabs+"/a"), 200)
}

// The dumps of priority and fairness are for callers whom a role permits to read exactly their paths. Without priority and fairness, and at
// other paths, there is none.
func TestDumps(t *testing.T) {
	const path = "/debug/api_priority_and_fairness/"
	h := newHarness(t)
	for name, columns := range map[string]string{"dump_priority_levels": "PriorityLevelName, ActiveQueues, ", "dump_queues": "PriorityLevelName, Index,", "dump_requests": "PriorityLevelName, FlowSchemaName, QueueIndex, "} {
		w := h.want(http.StatusOK, "GET", path+name, "")
		if !strings.HasPrefix(w.Body.String(), columns) || w.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%s: %v %s", name, w.Header(), w.Body)
		}
		if w := asJane(t.Context(), h, path+name); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), `cannot get path \"`+path+name+`\"`) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	if w := h.want(http.StatusOK, "GET", path+"dump_requests?includeRequestDetails=yes", ""); !strings.Contains(w.Body.String(), path+"dump_requests, ") {
		t.Errorf("the request itself is not listed: %s", w.Body)
	}
	for _, none := range []string{"", "dump_nothing", "dump_queues/"} {
		h.want(http.StatusNotFound, "GET", path+none, "")
	}
	newHarness(t, func(c *Config) { c.Fairness = nil }).want(http.StatusNotFound, "GET", path+"dump_queues", "")
}
