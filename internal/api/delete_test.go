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
	pods      = "/api/v1/namespaces/default/pods"
	atOnce    = `{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0%s}`
	scheduled = `"spec":{"nodeName":"m",`
)

// gone checks that an object is shown as marked with no time left.
func gone(t testing.TB, o any, generation float64) {
	t.Helper()
	md, _ := at(o, "metadata").(map[string]any)
	if md["deletionTimestamp"] == nil || md["deletionGracePeriodSeconds"] != 0.0 || md["generation"] != generation {
		t.Errorf("deletionTimestamp %v, grace %v, generation %v, want %v", md["deletionTimestamp"], md["deletionGracePeriodSeconds"], md["generation"], generation)
	}
}

// A Pod that goes at once is marked as going before it goes, in the answer as in what watchers see.
func TestDeleteAtOnce(t *testing.T) {
	onNode := strings.Replace(aPod, `"spec":{`, scheduled, 1)
	for name, c := range map[string]struct{ pod, phase, options string }{
		"of no node": {aPod, "Pending", ""},
		"has ended":  {onNode, "Succeeded", ""},
		"by force":   {onNode, "Running", fmt.Sprintf(atOnce, "")},
		"as seen":    {onNode, "Running", fmt.Sprintf(atOnce, `,"preconditions":{"uid":"UID","resourceVersion":"VERSION"}`)},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.want(http.StatusCreated, "POST", pods, c.pod)
			made := tree(t, h.want(http.StatusOK, "PATCH", pods+"/p/status", `{"status":{"phase":"`+c.phase+`"}}`, "Content-Type: application/merge-patch+json").Body)
			options := strings.NewReplacer("UID", at(made, "metadata", "uid").(string), "VERSION", at(made, "metadata", "resourceVersion").(string)).Replace(c.options)
			gone(t, tree(t, h.want(http.StatusOK, "DELETE", pods+"/p", fmt.Sprintf(atOnce, `,"dryRun":["All"],"orphanDependents":false`)).Body), 2) // 202 if it stayed
			h.want(http.StatusOK, "GET", pods+"/p", "")
			_, events := h.follow(pods + "?watch=true")
			expect(t, next(t, events), "ADDED", "p")
			gone(t, tree(t, h.want(http.StatusOK, "DELETE", pods+"/p", options).Body), 2)
			for _, kind := range []string{"MODIFIED", "DELETED"} {
				e := next(t, events)
				expect(t, e, kind, "p")
				gone(t, e["object"], 2)
			}
			h.want(http.StatusNotFound, "GET", pods+"/p", "")
		})
	}
}

// So are the Pods of a collection, which is answered as it was; and one that has been given time before.
func TestDeleteCollectionAtOnce(t *testing.T) {
	h := newHarness(t)
	h.want(http.StatusCreated, "POST", pods, aPod)
	h.want(http.StatusCreated, "POST", pods, strings.NewReplacer(`"p"`, `"q"`, `"spec":{`, scheduled).Replace(aPod))
	h.want(http.StatusOK, "DELETE", pods+"/q", "")
	_, events := h.follow(pods + "?watch=true")
	expect(t, next(t, events), "ADDED", "p")
	expect(t, next(t, events), "ADDED", "q")
	list := tree(t, h.want(http.StatusOK, "DELETE", pods, fmt.Sprintf(atOnce, "")).Body)
	if items := list["items"].([]any); len(items) != 2 || at(items[0], "metadata", "deletionTimestamp") != nil {
		t.Errorf("answered with %v", items)
	}
	for _, line := range []string{"MODIFIED p", "MODIFIED q", "DELETED p", "DELETED q"} {
		kind, name, _ := strings.Cut(line, " ")
		e := next(t, events)
		expect(t, e, kind, name)
		gone(t, e["object"], 2)
	}
}

// Whoever removes or replaces a Pod after it has been marked has removed it for the first one, too.
func TestRemovedWhileItIsDeleted(t *testing.T) {
	for name, replace := range map[string]bool{"removed": false, "replaced": true} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.want(http.StatusCreated, "POST", pods, aPod)
			r := &racingStore{Store: h.server.engine.Store}
			r.second = func() {
				h.want(http.StatusOK, "DELETE", pods+"/p", "")
				if replace {
					h.want(http.StatusCreated, "POST", pods, aPod)
				}
			}
			h.server.engine.Store = r
			gone(t, tree(t, h.want(http.StatusOK, "DELETE", pods+"/p", "").Body), 2)
			if left := tree(t, h.do("GET", pods+"/p", "").Body); (left["kind"] == "Pod") != replace || at(left, "metadata", "deletionTimestamp") != nil {
				t.Errorf("after it: %v", left)
			}
			if r.second != nil {
				t.Error("nobody came in between")
			}
		})
	}
}

// Who deletes a Job without a word of its Pods is told that they stay.
func TestOrphanWarning(t *testing.T) {
	h := newHarness(t)
	const jobs = "/apis/batch/v1/namespaces/default/jobs"
	const warns = `299 - "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"`
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
			t.Errorf("%s %s: %q", c.path, c.options, got)
		}
	}
}

// Two kinds have words of their own for a delete whose preconditions are not met; what is being deleted has them as well.
func TestPreconditionsOfNamespaces(t *testing.T) {
	h := withCronTabs(t)
	const options = `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{%s}}`
	const crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/crontabs.stable.example.com"
	for _, c := range []struct{ path, pre, says, of, what string }{
		{"/api/v1/namespaces/n", `"uid":"x"`, `namespaces "n": Precondition failed: UID in precondition: x, UID in object meta: %s`, "uid", "namespaces"},
		{"/api/v1/namespaces/n", `"resourceVersion":"x"`, `namespaces "n": Precondition failed: ResourceVersion in precondition: x, ResourceVersion in object meta: %s`, "resourceVersion", "namespaces"},
		{crd, `"uid":"x"`, `customresourcedefinitions.apiextensions.k8s.io "crontabs.stable.example.com": precondition failed: UID in precondition: x, UID in object meta: %s`, "uid", "customresourcedefinitions"},
	} {
		if c.what == "namespaces" {
			h.do("POST", "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n"}}`)
		}
		for range 2 {
			has := at(tree(t, h.want(http.StatusOK, "GET", c.path, "").Body), "metadata", c.of)
			s := tree(t, h.want(http.StatusConflict, "DELETE", c.path, fmt.Sprintf(options, c.pre)).Body)
			if want := "Operation cannot be fulfilled on " + fmt.Sprintf(c.says, has); s["message"] != want || at(s, "details", "kind") != c.what {
				t.Errorf("got  %v\nwant %s", s, want)
			}
			h.want(http.StatusOK, "DELETE", c.path, "")
		}
	}
}

// What a namespace is deleted with the first time counts, until what is in it has gone.
func TestDeleteOfATerminatingNamespace(t *testing.T) {
	h := newHarness(t)
	h.want(http.StatusCreated, "POST", "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n"}}`)
	first := h.want(http.StatusOK, "DELETE", "/api/v1/namespaces/n?propagationPolicy=Foreground", "").Body.String()
	if second := h.want(http.StatusOK, "DELETE", "/api/v1/namespaces/n?propagationPolicy=Orphan", "").Body.String(); second != first {
		t.Errorf("got  %s\nwant %s", second, first)
	}
}

// racingStore has something done after the next commit.
type racingStore struct {
	storage.Store
	second func()
}

func (r *racingStore) Commit(ctx context.Context, writes []storage.Write, guards ...storage.Guard) ([]*storage.Event, error) {
	events, err := r.Store.Commit(ctx, writes, guards...)
	if second := r.second; second != nil {
		r.second = nil
		second()
	}
	return events, err
}
