package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// createWebPods creates Pods with the given names, which run on a node and are ready.
func (f *fixture) createWebPods(names ...string) {
	f.Helper()
	for _, name := range names {
		f.mustCreate(f.pods(""), fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"app":"web"}},"spec":{"nodeName":"n",`+
			`"containers":[{"name":"c","image":"i"}]}}`, name))
		f.setPhase(name, "Running", "True")
	}
}

// setPhase sets the phase and the Ready condition of a Pod.
func (f *fixture) setPhase(pod, setPhase, ready string) {
	f.Helper()
	f.mustPatch(subresource(f.pods(pod), "status"), mergePatch,
		fmt.Sprintf(`{"status":{"phase":%q,"conditions":[{"type":"Ready","status":%q}]}}`, setPhase, ready))
}

// budget returns the target of a PodDisruptionBudget, or of all budgets if name is "".
func (f *fixture) budget(name string) verb.Target {
	f.Helper()
	t := f.target("policy", "v1", "poddisruptionbudgets", "default")
	t.Name = name
	return t
}

// createBudget creates a PodDisruptionBudget for the Pods of createWebPods. Its status is as the disruption
// controller would set it.
func (f *fixture) createBudget(name, spec, status string) {
	f.Helper()
	f.mustCreate(f.budget(""), fmt.Sprintf(`{"metadata":{"name":%q},`+
		`"spec":{"selector":{"matchLabels":{"app":"web"}}%s}}`, name, spec))
	f.mustPatch(subresource(f.budget(name), "status"), mergePatch, `{"status":`+status+`}`)
}

// evict posts an Eviction of a Pod.
func (f *fixture) evict(pod, options string) error {
	f.Helper()
	body := verb.Body{Tree: decode(f, fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q},`+
		`"deleteOptions":{%s}}`, pod, options))}
	_, _, err := f.PostSubresource(f.ctx, subresource(f.pods(pod), "eviction"), body, f.caller)
	return err
}

// evictionState returns whether a Pod is marked for deletion, and its DisruptionTarget condition.
func (f *fixture) evictionState(pod string) []any {
	f.Helper()
	got := f.get(f.pods(pod))
	condition := "none"
	for _, c := range valueAt(got, "status.conditions").([]any) {
		if c := c.(object.Tree); c["type"] == "DisruptionTarget" {
			condition = fmt.Sprint(c["status"], " ", c["reason"], " ", c["message"])
		}
	}
	return []any{object.DeletionTimestamp(got) != "", condition}
}

var (
	notEvicted = []any{false, "none"}
	evicted    = []any{true, "True EvictionByEvictionAPI Eviction API: evicting"}
)

// TestEvictionByBudget checks the result of an eviction for various budgets. The messages equal those of
// kube-apiserver (SUB-028).
func TestEvictionByBudget(t *testing.T) {
	const prefix = "The disruption budget b "
	for _, c := range []struct {
		spec, status string
		ready        string
		code         int32
		retry        int32
		cause        string
	}{
		{"", `{"observedGeneration":1,"disruptionsAllowed":1}`, "True", 0, 0, ""},
		{"", `{"disruptionsAllowed":1}`, "True", 429, 10, prefix + "is still being processed by the server."},
		{"", `{"observedGeneration":1,"currentHealthy":2,"desiredHealthy":2}`, "True", 429, 0,
			prefix + "needs 2 healthy pods and has 2 currently"},
		{"", `{"observedGeneration":1,"currentHealthy":3,"desiredHealthy":2}`, "True", 429, 0,
			prefix + "does not allow evicting pods currently"},
		{"", `{"observedGeneration":1,"currentHealthy":3,"conditions":[` + notAllowed +
			`"reason":"SyncFailed","message":"m"}]}`, "True", 429, 0, prefix +
			"does not allow evicting pods currently because it failed sync: m"},
		{"", `{"observedGeneration":1,"currentHealthy":3,"conditions":[` + notAllowed +
			`"reason":"Other","message":"m"}]}`, "True", 429, 0, prefix +
			"does not allow evicting pods currently (Other): m"},
		{"", `{"observedGeneration":1,"disruptionsAllowed":1,"disruptedPods":{` + disruptedPods(2001) + `}}`, "True",
			403, 0, prefix + "does not allow evicting pods currently: too many pending evictions not confirmed by " +
				"PDB controller"},
		{"", `{"observedGeneration":1,"currentHealthy":1,"desiredHealthy":2}`, "False", 429, 0,
			prefix + "needs 2 healthy pods and has 1 currently"},
		{"", `{"observedGeneration":1,"currentHealthy":2,"desiredHealthy":2}`, "False", 0, 0, ""},
		{"", `{"observedGeneration":1}`, "False", 429, 0, prefix + "needs 0 healthy pods and has 0 currently"},
		{`,"unhealthyPodEvictionPolicy":"AlwaysAllow"`, `{"observedGeneration":1,"desiredHealthy":2}`, "False", 0, 0,
			""},
		{`,"unhealthyPodEvictionPolicy":"AlwaysAllow"`, `{"observedGeneration":1,"desiredHealthy":2}`, "True", 429, 0,
			prefix + "needs 2 healthy pods and has 0 currently"},
	} {
		f := newFixture(t)
		f.createWebPods("p")
		f.setPhase("p", "Running", c.ready)
		f.createBudget("b", c.spec, c.status)
		err := f.evict("p", "")
		if c.code == 0 {
			if err != nil {
				t.Errorf("%s: %v", c.status, err)
			}
			equal(t, c.status, f.evictionState("p"), evicted)
			continue
		}
		s := f.expectStatus(err, c.code, map[int32]metav1.StatusReason{429: metav1.StatusReasonTooManyRequests,
			403: metav1.StatusReasonForbidden}[c.code], "")
		equal(t, c.status, s.Details.Causes, []metav1.StatusCause{{Type: "DisruptionBudget", Message: c.cause}})
		equal(t, "seconds to wait", s.Details.RetryAfterSeconds, c.retry)
		equal(t, "Pod", f.evictionState("p"), notEvicted)
	}
}

const notAllowed = `{"type":"DisruptionAllowed","status":"False","lastTransitionTime":"2020-01-01T00:00:00Z",`

func disruptedPods(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`"p%d":"2020-01-01T00:00:00Z"`, i)
	}
	return strings.Join(all, ",")
}

// TestEvictionBudgetUpdate checks that the commit that marks a Pod for deletion also updates its budget. If the
// eviction is no disruption, the budget is unchanged. A Pod with two budgets cannot be evicted (SUB-028).
func TestEvictionBudgetUpdate(t *testing.T) {
	f := newFixture(t)
	f.createWebPods("ready", "unready", "pending", "done")
	f.setPhase("unready", "Running", "False")
	f.setPhase("pending", "Pending", "False")
	f.setPhase("done", "Succeeded", "False")
	f.createBudget("b", "", `{"observedGeneration":1,"disruptionsAllowed":1,"currentHealthy":2,"desiredHealthy":1}`)
	f.caller.DryRun = true
	if err := f.evict("ready", ""); err != nil {
		t.Fatal(err)
	}
	f.caller.DryRun = false
	if err := f.evict("ready", `"dryRun":["All"]`); err != nil {
		t.Fatal(err)
	}
	f.expectStatus(f.evict("ready", `"preconditions":{"uid":"other"}`), 409, metav1.StatusReasonConflict,
		"the UID in the precondition (other) does not match the UID in record")
	equal(t, "allowed after dry runs and a conflict", valueAt(f.get(f.budget("b")), "status.disruptionsAllowed"), 1)
	equal(t, "the Pod after dry runs and a conflict", f.evictionState("ready"), notEvicted)
	var commits []int
	f.beforeCommit = func(writes []storage.Write) { commits = append(commits, len(writes)) }
	for _, pod := range []string{"unready", "pending", "ready", "done"} {
		if err := f.evict(pod, ""); err != nil {
			t.Fatal(pod, err)
		}
	}
	equal(t, "writes of each commit", commits, []int{1, 1, 2, 1, 1}) // an ended Pod is marked and then deleted
	f.beforeCommit = nil
	for _, pod := range []string{"unready", "pending", "ready"} {
		equal(t, pod, f.evictionState(pod), evicted)
	}
	_, err := f.Get(f.ctx, f.pods("done"), "")
	f.expectStatus(err, 404, metav1.StatusReasonNotFound, "")
	charged := f.get(f.budget("b"))
	disrupted, _ := valueAt(charged, "status.disruptedPods").(object.Tree)
	conditions := valueAt(charged, "status.conditions").([]any)
	equal(t, "budget", []any{valueAt(charged, "status.disruptionsAllowed"), len(disrupted),
		disrupted["ready"] != nil, conditions[0].(object.Tree)["reason"]}, []any{0, 1, true, "InsufficientPods"})
	f.createWebPods("two")
	f.createBudget("c", "", `{"observedGeneration":1,"disruptionsAllowed":1}`)
	s := f.expectStatus(f.evict("two", ""), 500, "",
		"This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
	equal(t, "details", s.Details == nil, true)
}

// TestEvictionOfInactivePods checks that a budget without allowed disruptions does not protect Pods that are
// pending or have ended (SUB-028).
func TestEvictionOfInactivePods(t *testing.T) {
	f := newFixture(t)
	f.createBudget("b", "", `{"observedGeneration":1,"currentHealthy":0,"desiredHealthy":1}`)
	for _, phase := range []string{"Pending", "Succeeded", "Failed"} {
		pod := strings.ToLower(phase)
		f.createWebPods(pod)
		f.setPhase(pod, phase, "False")
		if err := f.evict(pod, ""); err != nil {
			t.Error(phase, err)
		}
	}
}

// TestConcurrentEvictions checks that only one of two concurrent evictions succeeds if the budget allows one
// disruption (SUB-028).
func TestConcurrentEvictions(t *testing.T) {
	f := newFixture(t)
	f.createWebPods("a", "b")
	f.createBudget("b", "", `{"observedGeneration":1,"disruptionsAllowed":1,"currentHealthy":2,"desiredHealthy":1}`)
	var other error
	onceBeforeCommit(f, func() { other = f.evict("b", "") })
	f.expectStatus(f.evict("a", ""), 429, metav1.StatusReasonTooManyRequests,
		"Cannot evict pod as it would violate the pod's disruption budget.")
	if other != nil {
		t.Fatal(other)
	}
	equal(t, "states of a and b", [][]any{f.evictionState("a"), f.evictionState("b")}, [][]any{notEvicted, evicted})
}

// TestEvictionConflict checks that the server evaluates an eviction again if the Pod or its budgets change before
// the commit.
func TestEvictionConflict(t *testing.T) {
	const none = `{"observedGeneration":1,"currentHealthy":1,"desiredHealthy":1}`
	for name, c := range map[string]struct {
		before, change func(*fixture)
		rejected       bool
	}{
		"a budget is created": {func(*fixture) {}, func(f *fixture) { f.createBudget("b", "", none) }, true},
		"its budget changes": {
			func(f *fixture) { f.createBudget("b", "", `{"observedGeneration":1,"disruptionsAllowed":1}`) },
			func(f *fixture) {
				f.mustPatch(subresource(f.budget("b"), "status"), mergePatch, `{"status":{"disruptionsAllowed":0}}`)
			}, true,
		},
		"the Pod becomes ready": {
			func(f *fixture) {
				f.setPhase("p", "Running", "False")
				f.createBudget("b", `,"unhealthyPodEvictionPolicy":"AlwaysAllow"`, none)
			},
			func(f *fixture) { f.setPhase("p", "Running", "True") }, true,
		},
		"the Pod gets a label": {func(*fixture) {},
			func(f *fixture) { f.mustPatch(f.pods("p"), mergePatch, `{"metadata":{"labels":{"x":"y"}}}`) }, false},
	} {
		f := newFixture(t)
		f.createWebPods("p")
		c.before(f)
		onceBeforeCommit(f, func() { c.change(f) })
		err, left := f.evict("p", ""), evicted
		if c.rejected {
			f.expectStatus(err, 429, metav1.StatusReasonTooManyRequests, "")
			left = notEvicted
		} else if err != nil {
			t.Error(name, err)
		}
		equal(t, name, f.evictionState("p"), left)
	}
}

// onceBeforeCommit calls the function other once, between the evaluation and the commit of the next write.
func onceBeforeCommit(f *fixture, other func()) {
	f.beforeCommit = func([]storage.Write) {
		f.beforeCommit = nil
		other()
	}
}

// TestEvictionAdmission checks that admission sees only the Eviction, and neither the Pod nor its deletion. The
// eviction of a terminating Pod sets the DisruptionTarget condition.
func TestEvictionAdmission(t *testing.T) {
	f := newFixture(t)
	f.createWebPods("p")
	var seen []string
	p := &plugin{}
	p.admit = func(_ context.Context, r *admission.Request) error {
		seen = append(seen, fmt.Sprint(r.Operation, r.Resource.Resource, r.Subresource,
			r.Version.GroupVersionKind().Kind, r.Name))
		return nil
	}
	p.validate = p.admit
	f.Admission = admission.Plugins{p}
	for _, options := range []string{"", `"gracePeriodSeconds":0`} {
		if err := f.evict("p", options); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, "admission calls", strings.Join(seen, " "), strings.Repeat(" CREATEpodsevictionEvictionp", 4)[1:])
	_, err := f.Get(f.ctx, f.pods("p"), "")
	f.expectStatus(err, 404, metav1.StatusReasonNotFound, "")
	f.Admission = nil
	f.createWebPods("q")
	f.delete(f.pods("q"), metav1.DeleteOptions{})
	if err := f.evict("q", ""); err != nil {
		t.Fatal(err)
	}
	equal(t, "a terminating Pod", f.evictionState("q"), evicted)
	if err := f.evict("q", `"propagationPolicy":"Foreground"`); err != nil {
		t.Fatal(err)
	}
	equal(t, "finalizers of a terminating Pod", fmt.Sprint(valueAt(f.get(f.pods("q")), "metadata.finalizers")), "<nil>")
	f.createWebPods("r")
	if err := f.evict("r", `"propagationPolicy":"Foreground"`); err != nil {
		t.Fatal(err)
	}
	equal(t, "finalizers", fmt.Sprint(valueAt(f.get(f.pods("r")), "metadata.finalizers")), "[foregroundDeletion]")
}

// TestInvalidEviction checks the errors for invalid Evictions, and that policy/v1beta1 is accepted.
func TestInvalidEviction(t *testing.T) {
	f := newFixture(t)
	f.createWebPods("p")
	post := func(text string) error {
		_, _, err := f.PostSubresource(
			f.ctx,
			subresource(f.pods("p"), "eviction"),
			verb.Body{Tree: decode(t, text)},
			f.caller,
		)
		return err
	}
	f.expectStatus(post(`{"metadata":{"name":"q"}}`), 400, metav1.StatusReasonBadRequest,
		"name in URL does not match name in Eviction object")
	f.expectStatus(post(`{"apiVersion":"policy/v2","metadata":{"name":"p"}}`), 400, metav1.StatusReasonBadRequest,
		"expected API version (policy/v1)")
	f.expectStatus(f.evict("p", `"ignoreStoreReadErrorWithClusterBreakingPotential":true`), 422,
		metav1.StatusReasonInvalid, "can not be set for pod eviction, try after removing the option")
	f.expectStatus(f.evict("p", `"propagationPolicy":"x"`), 422, metav1.StatusReasonInvalid,
		"propagationPolicy: Unsupported value")
	f.expectStatus(f.evict("none", ""), 404, metav1.StatusReasonNotFound, `pods "none" not found`)
	f.caller.DryRun = true
	f.expectStatus(f.evict("p", `"dryRun":["x"]`), 500, metav1.StatusReasonUnknown,
		"Non-matching dry-run options in request and content: [All] and [x]")
	f.caller.DryRun = false
	equal(t, "after invalid requests", f.evictionState("p"), notEvicted)
	if err := post(`{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"p"}}`); err != nil {
		t.Fatal(err)
	}
	equal(t, "with policy/v1beta1", f.evictionState("p"), evicted)
}

// TestLegacyBinding checks that a Binding that is posted to the resource bindings binds the Pod with its name. The
// Binding is not stored (SCD-040).
func TestLegacyBinding(t *testing.T) {
	f := newFixture(t)
	f.createPod("p")
	post := func(text string) error {
		_, _, err := f.PostSubresource(
			f.ctx,
			f.target("", "v1", "bindings", "default"),
			verb.Body{Tree: decode(t, text)},
			f.caller,
		)
		return err
	}
	f.expectStatus(post(`{"target":{"kind":"X","name":"m"}}`), 500, metav1.StatusReasonUnknown,
		`target.kind: Unsupported value: "X"`)
	f.expectStatus(post(`{"metadata":{"generateName":"p"},"target":{"name":"m"}}`), 400, metav1.StatusReasonBadRequest,
		"Name parameter required.")
	f.expectStatus(post(`{"metadata":{"name":"none"},"target":{"name":"m"}}`), 404, metav1.StatusReasonNotFound,
		`pods "none" not found`)
	f.expectStatus(post(`{"metadata":{"name":"p","resourceVersion":"1"},"target":{"name":"m"}}`), 409,
		metav1.StatusReasonConflict, "ResourceVersion in precondition: 1")
	before := f.newestRevision()
	if err := post(`{"metadata":{"name":"p","uid":"ignored"},"target":{"name":"m"}}`); err != nil {
		t.Fatal(err)
	}
	equal(t, "node", valueAt(f.get(f.pods("p")), "spec.nodeName"), "m")
	equal(t, "changes", len(f.eventsAfter(before)), 1)
	f.expectStatus(post(`{"metadata":{"name":"p"},"target":{"name":"m"}}`), 409, metav1.StatusReasonConflict,
		`pods/binding "p": pod p is already assigned to node "m"`)
}

// TestEvictionCallsEnded checks that an eviction also calls the Ended callbacks for the write of the budget. It
// does so even if the Pod is only marked or the write is retried. Until then no ResourceQuota of the namespace is
// recounted (SUB-028).
func TestEvictionCallsEnded(t *testing.T) {
	f := newFixture(t)
	f.createWebPods("marked", "retried")
	f.createBudget("b", "", `{"observedGeneration":1,"disruptionsAllowed":2,"currentHealthy":2}`)
	begun, open := map[string]int{}, 0
	f.Admission = admission.Plugins{&plugin{validate: func(_ context.Context, r *admission.Request) error {
		begun[r.Resource.Resource]++
		open++
		r.OnEnd(func() { open-- })
		return nil
	}}}
	for i, pod := range []string{"marked", "retried"} {
		if pod == "retried" {
			onceBeforeCommit(f, func() { f.mustPatch(f.budget("b"), mergePatch, `{"metadata":{"labels":{"a":"b"}}}`) })
		}
		if err := f.evict(pod, ""); err != nil {
			t.Fatal(pod, err)
		}
		equal(t, pod, f.evictionState(pod), evicted)
		if open != 0 || begun["poddisruptionbudgets"] <= i {
			t.Errorf("%s: got %d writes that have not ended, of %v", pod, open, begun)
		}
	}
}

// TestWriteEndsAfterAllAttempts checks that a write that is attempted again has not ended between its attempts. A
// ResourceQuota that is charged by the first attempt would otherwise be recounted without the object.
func TestWriteEndsAfterAllAttempts(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.namespace(""), `{"metadata":{"name":"n"}}`)
	attempts, open := 0, 0
	f.Admission = admission.Plugins{&plugin{validate: func(_ context.Context, r *admission.Request) error {
		if r.Resource.Resource != "configmaps" {
			return nil
		}
		equal(t, "writes that have not ended", open, attempts)
		attempts++
		open++
		r.OnEnd(func() { open-- })
		return nil
	}}}
	onceBeforeCommit(f, func() {
		f.mustPatch(f.namespace("n"), mergePatch, `{"metadata":{"labels":{"a":"b"}}}`)
	})
	if _, err := f.create(f.target("", "v1", "configmaps", "n"), `{"metadata":{"name":"m"}}`); err != nil {
		t.Fatal(err)
	}
	equal(t, "attempts", attempts, 2)
	equal(t, "writes that have not ended", open, 0)
}
