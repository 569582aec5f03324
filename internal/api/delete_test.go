package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/storage"
)

const (
	pods = "/api/v1/namespaces/default/pods"
	// zeroGrace is the format of DeleteOptions with a grace period of 0 s.
	zeroGrace = `{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0%s}`
	// scheduled replaces `"spec":{` in podJSON. The Pod is then bound to node m.
	scheduled = `"spec":{"nodeName":"m",`
)

// wantMarked checks that an object is marked for deletion with a grace period of 0 s, and has the given generation.
func wantMarked(t testing.TB, o any, generation float64) {
	t.Helper()
	md, _ := at(o, "metadata").(map[string]any)
	if md["deletionTimestamp"] == nil || md["deletionGracePeriodSeconds"] != 0.0 || md["generation"] != generation {
		t.Errorf("got deletionTimestamp %v, grace period %v, generation %v, want any timestamp, 0 and %v",
			md["deletionTimestamp"], md["deletionGracePeriodSeconds"], md["generation"], generation)
	}
}

// TestImmediateDelete checks that a Pod without a grace period is marked for deletion before it is deleted. The mark is
// in the response and in the events of watches.
func TestImmediateDelete(t *testing.T) {
	onNode := strings.Replace(podJSON, `"spec":{`, scheduled, 1)
	for name, c := range map[string]struct{ pod, phase, options string }{
		"unscheduled": {podJSON, "Pending", ""},
		"finished":    {onNode, "Succeeded", ""},
		"forced":      {onNode, "Running", fmt.Sprintf(zeroGrace, "")},
		"preconditions": {onNode, "Running",
			fmt.Sprintf(zeroGrace, `,"preconditions":{"uid":"UID","resourceVersion":"VERSION"}`)},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.want(http.StatusCreated, "POST", pods, c.pod)
			pod := tree(t, h.want(http.StatusOK, "PATCH", pods+"/p/status", `{"status":{"phase":"`+c.phase+`"}}`,
				"Content-Type: application/merge-patch+json").Body)
			options := strings.NewReplacer("UID", at(pod, "metadata", "uid").(string), "VERSION",
				at(pod, "metadata", "resourceVersion").(string)).Replace(c.options)
			// The code would be 202 if the Pod were only marked.
			wantMarked(t, tree(t, h.want(http.StatusOK, "DELETE", pods+"/p",
				fmt.Sprintf(zeroGrace, `,"dryRun":["All"],"orphanDependents":false`)).Body), 2)
			h.want(http.StatusOK, "GET", pods+"/p", "")
			_, events := h.watch(pods + "?watch=true")
			wantEvent(t, nextEvent(t, events), "ADDED", "p")
			wantMarked(t, tree(t, h.want(http.StatusOK, "DELETE", pods+"/p", options).Body), 2)
			for _, kind := range []string{"MODIFIED", "DELETED"} {
				e := nextEvent(t, events)
				wantEvent(t, e, kind, "p")
				wantMarked(t, e["object"], 2)
			}
			h.want(http.StatusNotFound, "GET", pods+"/p", "")
		})
	}
}

// TestImmediateDeleteCollection checks that a delete of a collection also marks each Pod before it deletes the Pod.
// The response holds the Pods as they were before the request. One of the Pods already has a mark with a grace
// period.
func TestImmediateDeleteCollection(t *testing.T) {
	h := newHarness(t)
	h.want(http.StatusCreated, "POST", pods, podJSON)
	h.want(http.StatusCreated, "POST", pods, strings.NewReplacer(`"p"`, `"q"`, `"spec":{`, scheduled).Replace(podJSON))
	h.want(http.StatusOK, "DELETE", pods+"/q", "")
	_, events := h.watch(pods + "?watch=true")
	wantEvent(t, nextEvent(t, events), "ADDED", "p")
	wantEvent(t, nextEvent(t, events), "ADDED", "q")
	list := tree(t, h.want(http.StatusOK, "DELETE", pods, fmt.Sprintf(zeroGrace, "")).Body)
	if items := list["items"].([]any); len(items) != 2 || at(items[0], "metadata", "deletionTimestamp") != nil {
		t.Errorf("got items %v, want 2, the first without deletionTimestamp", items)
	}
	for _, line := range []string{"MODIFIED p", "MODIFIED q", "DELETED p", "DELETED q"} {
		kind, name, _ := strings.Cut(line, " ")
		e := nextEvent(t, events)
		wantEvent(t, e, kind, name)
		wantMarked(t, e["object"], 2)
	}
}

// TestConcurrentDelete checks a delete during which another request removes or replaces the Pod. The other request
// runs after the first one has marked the Pod. The first delete succeeds and does not affect the new Pod.
func TestConcurrentDelete(t *testing.T) {
	for name, replace := range map[string]bool{"removed": false, "replaced": true} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.want(http.StatusCreated, "POST", pods, podJSON)
			r := &racingStore{Store: h.engine.Store}
			r.second = func() {
				h.want(http.StatusOK, "DELETE", pods+"/p", "")
				if replace {
					h.want(http.StatusCreated, "POST", pods, podJSON)
				}
			}
			h.engine.Store = r
			wantMarked(t, tree(t, h.want(http.StatusOK, "DELETE", pods+"/p", "").Body), 2)
			if left := tree(t, h.do("GET", pods+"/p", "").Body); (left["kind"] == "Pod") != replace ||
				at(left, "metadata", "deletionTimestamp") != nil {
				t.Errorf("after the delete: got %v, want a new Pod: %v", left, replace)
			}
			if r.second != nil {
				t.Error("the concurrent request was not sent")
			}
		})
	}
}

// TestOrphanWarning checks that deleting a Job without a propagation policy returns a warning that its Pods remain.
func TestOrphanWarning(t *testing.T) {
	h := newHarness(t)
	const jobs = "/apis/batch/v1/namespaces/default/jobs"
	const warns = `299 - "child pods are preserved by default when jobs are deleted; set ` +
		`propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"`
	for _, c := range []struct {
		path, options string
		warned        bool
	}{
		{jobs + "/absent", "", true}, {jobs, "", true}, {jobs + "/absent?gracePeriodSeconds=1", "", true},
		{jobs + "/absent?propagationPolicy=Orphan", "", false}, {jobs + "?propagationPolicy=Background", "", false},
		{jobs + "/absent", `{"apiVersion":"v1","kind":"DeleteOptions","orphanDependents":true}`, false},
		{"/api/v1/namespaces/default/replicationcontrollers/absent", "", false},
	} {
		got := h.do("DELETE", c.path, c.options).Header()["Warning"]
		if c.warned != (len(got) == 1 && got[0] == warns) || !c.warned && len(got) > 0 {
			t.Errorf("%s %s: got warnings %q, want one: %v", c.path, c.options, got, c.warned)
		}
	}
}

// TestDeletePreconditionMessages checks the messages for unmet preconditions of a delete. Namespaces and CRDs have
// their own messages, even while the object is terminating.
func TestDeletePreconditionMessages(t *testing.T) {
	h := withCronTabs(t)
	const options = `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{%s}}`
	const crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/crontabs.stable.example.com"
	for _, c := range []struct{ path, precondition, format, field, resource string }{
		{"/api/v1/namespaces/n", `"uid":"x"`,
			`namespaces "n": Precondition failed: UID in precondition: x, UID in object meta: %s`, "uid", "namespaces"},
		{"/api/v1/namespaces/n", `"resourceVersion":"x"`,
			`namespaces "n": Precondition failed: ResourceVersion in precondition: x, ResourceVersion in object ` +
				`meta: %s`,
			"resourceVersion", "namespaces"},
		{crd, `"uid":"x"`, `customresourcedefinitions.apiextensions.k8s.io "crontabs.stable.example.com": ` +
			`precondition failed: UID in precondition: x, UID in object meta: %s`, "uid", "customresourcedefinitions"},
	} {
		if c.resource == "namespaces" {
			h.do("POST", "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n"}}`)
		}
		for range 2 {
			current := at(tree(t, h.want(http.StatusOK, "GET", c.path, "").Body), "metadata", c.field)
			s := tree(t, h.want(http.StatusConflict, "DELETE", c.path, fmt.Sprintf(options, c.precondition)).Body)
			if want := "Operation cannot be fulfilled on " + fmt.Sprintf(c.format, current); s["message"] != want ||
				at(s, "details", "kind") != c.resource {
				t.Errorf(" got %v\nwant %s", s, want)
			}
			h.want(http.StatusOK, "DELETE", c.path, "")
		}
	}
}

// TestDeleteOfTerminatingNamespace checks that a second delete of a namespace changes nothing. The options of the first
// delete apply until the namespace is empty.
func TestDeleteOfTerminatingNamespace(t *testing.T) {
	h := newHarness(t)
	h.want(http.StatusCreated, "POST", "/api/v1/namespaces",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n"}}`)
	first := h.want(http.StatusOK, "DELETE", "/api/v1/namespaces/n?propagationPolicy=Foreground", "").Body.String()
	second := h.want(http.StatusOK, "DELETE", "/api/v1/namespaces/n?propagationPolicy=Orphan", "").Body.String()
	if second != first {
		t.Errorf(" got %s\nwant %s", second, first)
	}
}

// racingStore is a Store that calls the function in its field second once, after the next commit.
type racingStore struct {
	storage.Store
	second func()
}

func (r *racingStore) Commit(
	ctx context.Context, writes []storage.Write, guards ...storage.Guard,
) ([]*storage.Event, error) {
	events, err := r.Store.Commit(ctx, writes, guards...)
	if second := r.second; second != nil {
		r.second = nil
		second()
	}
	return events, err
}
