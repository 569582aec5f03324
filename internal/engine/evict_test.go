package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// web makes Pods of those names that run on a node and are ready.
func (w *world) web(names ...string) {
	w.Helper()
	for _, name := range names {
		w.mustCreate(w.pods(""), fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"app":"web"}},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}`, name))
		w.phase(name, "Running", "True")
	}
}

func (w *world) phase(pod, phase, ready string) {
	w.Helper()
	w.mustPatch(w.pods(pod).sub("status"), merging, fmt.Sprintf(`{"status":{"phase":%q,"conditions":[{"type":"Ready","status":%q}]}}`, phase, ready))
}

func (w *world) budgets(name string) Target {
	w.Helper()
	t := w.at("policy", "v1", "poddisruptionbudgets", "default")
	t.Name = name
	return t
}

// budget makes a budget of those Pods, as a controller has left it.
func (w *world) budget(name, spec, status string) {
	w.Helper()
	w.mustCreate(w.budgets(""), fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"selector":{"matchLabels":{"app":"web"}}%s}}`, name, spec))
	w.mustPatch(w.budgets(name).sub("status"), merging, `{"status":`+status+`}`)
}

// evict posts an Eviction.
func (w *world) evict(pod, options string) error {
	w.Helper()
	body := Body{Tree: decode(w, fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q},"deleteOptions":{%s}}`, pod, options))}
	_, _, err := w.PostSubresource(w.ctx, w.pods(pod).sub("eviction"), body, w.caller)
	return err
}

// evicted says what an eviction has left of a Pod: whether it is going, and what for.
func (w *world) evicted(pod string) []any {
	w.Helper()
	got := w.get(w.pods(pod))
	said := "nothing"
	for _, c := range valueAt(got, "status.conditions").([]any) {
		if c := c.(object.Tree); c["type"] == "DisruptionTarget" {
			said = fmt.Sprint(c["status"], " ", c["reason"], " ", c["message"])
		}
	}
	return []any{deletionStarted(got), said}
}

var (
	staying = []any{false, "nothing"}
	going   = []any{true, "True EvictionByEvictionAPI Eviction API: evicting"}
)

// SUB-028: what a budget says of an eviction, in kube-apiserver's words.
func TestEvictionByBudget(t *testing.T) {
	const unstable = "The disruption budget b "
	for _, c := range []struct {
		spec, status string
		ready        string
		code         int32
		retry        int32
		cause        string
	}{
		{"", `{"observedGeneration":1,"disruptionsAllowed":1}`, "True", 0, 0, ""},
		{"", `{"disruptionsAllowed":1}`, "True", 429, 10, unstable + "is still being processed by the server."},
		{"", `{"observedGeneration":1,"currentHealthy":2,"desiredHealthy":2}`, "True", 429, 0, unstable + "needs 2 healthy pods and has 2 currently"},
		{"", `{"observedGeneration":1,"currentHealthy":3,"desiredHealthy":2}`, "True", 429, 0, unstable + "does not allow evicting pods currently"},
		{"", `{"observedGeneration":1,"currentHealthy":3,"conditions":[` + notAllowed + `"reason":"SyncFailed","message":"m"}]}`, "True", 429, 0, unstable + "does not allow evicting pods currently because it failed sync: m"},
		{"", `{"observedGeneration":1,"currentHealthy":3,"conditions":[` + notAllowed + `"reason":"Other","message":"m"}]}`, "True", 429, 0, unstable + "does not allow evicting pods currently (Other): m"},
		{"", `{"observedGeneration":1,"disruptionsAllowed":1,"disruptedPods":{` + manyPods(2001) + `}}`, "True", 403, 0, unstable + "does not allow evicting pods currently: too many pending evictions not confirmed by PDB controller"},
		{"", `{"observedGeneration":1,"currentHealthy":1,"desiredHealthy":2}`, "False", 429, 0, unstable + "needs 2 healthy pods and has 1 currently"},
		{"", `{"observedGeneration":1,"currentHealthy":2,"desiredHealthy":2}`, "False", 0, 0, ""},
		{"", `{"observedGeneration":1}`, "False", 429, 0, unstable + "needs 0 healthy pods and has 0 currently"},
		{`,"unhealthyPodEvictionPolicy":"AlwaysAllow"`, `{"observedGeneration":1,"desiredHealthy":2}`, "False", 0, 0, ""},
		{`,"unhealthyPodEvictionPolicy":"AlwaysAllow"`, `{"observedGeneration":1,"desiredHealthy":2}`, "True", 429, 0, unstable + "needs 2 healthy pods and has 0 currently"},
	} {
		w := newWorld(t)
		w.web("p")
		w.phase("p", "Running", c.ready)
		w.budget("b", c.spec, c.status)
		err := w.evict("p", "")
		if c.code == 0 {
			if err != nil {
				t.Errorf("%s: %v", c.status, err)
			}
			equal(t, c.status, w.evicted("p"), going)
			continue
		}
		s := w.refused(err, c.code, map[int32]metav1.StatusReason{429: metav1.StatusReasonTooManyRequests, 403: metav1.StatusReasonForbidden}[c.code], "")
		equal(t, c.status, s.Details.Causes, []metav1.StatusCause{{Type: "DisruptionBudget", Message: c.cause}})
		equal(t, "seconds to wait", s.Details.RetryAfterSeconds, c.retry)
		equal(t, "the Pod", w.evicted("p"), staying)
	}
}

const notAllowed = `{"type":"DisruptionAllowed","status":"False","lastTransitionTime":"2020-01-01T00:00:00Z",`

func manyPods(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`"p%d":"2020-01-01T00:00:00Z"`, i)
	}
	return strings.Join(all, ",")
}

// SUB-028: a budget is charged in the commit that marks the Pod; a Pod that disrupts nothing asks no budget, one with two of them stays.
func TestEvictionCharges(t *testing.T) {
	w := newWorld(t)
	w.web("ready", "unready", "pending", "done")
	w.phase("unready", "Running", "False")
	w.phase("pending", "Pending", "False")
	w.phase("done", "Succeeded", "False")
	w.budget("b", "", `{"observedGeneration":1,"disruptionsAllowed":1,"currentHealthy":2,"desiredHealthy":1}`)
	w.caller.DryRun = true
	if err := w.evict("ready", ""); err != nil {
		t.Fatal(err)
	}
	w.caller.DryRun = false
	if err := w.evict("ready", `"dryRun":["All"]`); err != nil {
		t.Fatal(err)
	}
	w.refused(w.evict("ready", `"preconditions":{"uid":"other"}`), 409, metav1.StatusReasonConflict, "the UID in the precondition (other) does not match the UID in record")
	equal(t, "allowed after dry runs and a conflict", valueAt(w.get(w.budgets("b")), "status.disruptionsAllowed"), 1)
	equal(t, "the Pod after them", w.evicted("ready"), staying)
	var commits []int
	w.beforeCommit = func(writes []storage.Write) { commits = append(commits, len(writes)) }
	for _, pod := range []string{"unready", "pending", "ready", "done"} {
		if err := w.evict(pod, ""); err != nil {
			t.Fatal(pod, err)
		}
	}
	equal(t, "writes of each commit", commits, []int{1, 1, 2, 1, 1}) // what has ended is marked, and then removed
	w.beforeCommit = nil
	for _, pod := range []string{"unready", "pending", "ready"} {
		equal(t, pod, w.evicted(pod), going)
	}
	_, err := w.Get(w.ctx, w.pods("done"), "")
	w.refused(err, 404, metav1.StatusReasonNotFound, "")
	charged := w.get(w.budgets("b"))
	disrupted, _ := valueAt(charged, "status.disruptedPods").(object.Tree)
	conditions := valueAt(charged, "status.conditions").([]any)
	equal(t, "the budget", []any{valueAt(charged, "status.disruptionsAllowed"), len(disrupted), disrupted["ready"] != nil, conditions[0].(object.Tree)["reason"]}, []any{0, 1, true, "InsufficientPods"})
	w.web("two")
	w.budget("c", "", `{"observedGeneration":1,"disruptionsAllowed":1}`)
	s := w.refused(w.evict("two", ""), 500, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
	equal(t, "details", s.Details == nil, true)
}

// SUB-028: a budget that allows nothing does not hold what disrupts nothing.
func TestEvictionOfWhatDoesNotRun(t *testing.T) {
	w := newWorld(t)
	w.budget("b", "", `{"observedGeneration":1,"currentHealthy":0,"desiredHealthy":1}`)
	for _, phase := range []string{"Pending", "Succeeded", "Failed"} {
		pod := strings.ToLower(phase)
		w.web(pod)
		w.phase(pod, phase, "False")
		if err := w.evict(pod, ""); err != nil {
			t.Error(phase, err)
		}
	}
}

// SUB-028: of two evictions that a budget of one disruption allows each by itself, one takes place.
func TestEvictionsRace(t *testing.T) {
	w := newWorld(t)
	w.web("a", "b")
	w.budget("b", "", `{"observedGeneration":1,"disruptionsAllowed":1,"currentHealthy":2,"desiredHealthy":1}`)
	var other error
	meanwhile(w, func() { other = w.evict("b", "") })
	w.refused(w.evict("a", ""), 429, metav1.StatusReasonTooManyRequests, "Cannot evict pod as it would violate the pod's disruption budget.")
	if other != nil {
		t.Fatal(other)
	}
	equal(t, "first and second", [][]any{w.evicted("a"), w.evicted("b")}, [][]any{staying, going})
}

// An eviction that has been judged holds only as long as the Pod and the budgets stay as they were.
func TestEvictionOvertaken(t *testing.T) {
	const none = `{"observedGeneration":1,"currentHealthy":1,"desiredHealthy":1}`
	for name, c := range map[string]struct {
		before, between func(*world)
		refused         bool
	}{
		"a budget comes": {func(*world) {}, func(w *world) { w.budget("b", "", none) }, true},
		"its budget changes": {
			func(w *world) { w.budget("b", "", `{"observedGeneration":1,"disruptionsAllowed":1}`) },
			func(w *world) {
				w.mustPatch(w.budgets("b").sub("status"), merging, `{"status":{"disruptionsAllowed":0}}`)
			}, true,
		},
		"the Pod gets ready": {
			func(w *world) {
				w.phase("p", "Running", "False")
				w.budget("b", `,"unhealthyPodEvictionPolicy":"AlwaysAllow"`, none)
			},
			func(w *world) { w.phase("p", "Running", "True") }, true,
		},
		"the Pod gets a label": {func(*world) {}, func(w *world) { w.mustPatch(w.pods("p"), merging, `{"metadata":{"labels":{"x":"y"}}}`) }, false},
	} {
		w := newWorld(t)
		w.web("p")
		c.before(w)
		meanwhile(w, func() { c.between(w) })
		err, left := w.evict("p", ""), going
		if c.refused {
			w.refused(err, 429, metav1.StatusReasonTooManyRequests, "")
			left = staying
		} else if err != nil {
			t.Error(name, err)
		}
		equal(t, name, w.evicted("p"), left)
	}
}

// meanwhile has something happen once, between the judgement and the commit of the next write.
func meanwhile(w *world, f func()) {
	w.beforeCommit = func([]storage.Write) {
		w.beforeCommit = nil
		f()
	}
}

// Admission is asked about the Eviction, and neither about the Pod nor its deletion; what is on its way out is marked and goes.
func TestAdmissionOfAnEviction(t *testing.T) {
	w := newWorld(t)
	w.web("p")
	var seen []string
	p := &plugin{}
	p.admit = func(_ context.Context, r *admission.Request) error {
		seen = append(seen, fmt.Sprint(r.Operation, r.Resource.Resource, r.Subresource, r.Version.GroupVersionKind().Kind, r.Name))
		return nil
	}
	p.validate = p.admit
	w.Admission = admission.Plugins{p}
	for _, options := range []string{"", `"gracePeriodSeconds":0`} {
		if err := w.evict("p", options); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, "asked", strings.Join(seen, " "), strings.Repeat(" CREATEpodsevictionEvictionp", 4)[1:])
	_, err := w.Get(w.ctx, w.pods("p"), "")
	w.refused(err, 404, metav1.StatusReasonNotFound, "")
	w.Admission = nil
	w.web("q")
	w.delete(w.pods("q"), metav1.DeleteOptions{})
	if err := w.evict("q", ""); err != nil {
		t.Fatal(err)
	}
	equal(t, "a Pod that was going", w.evicted("q"), going)
	if err := w.evict("q", `"propagationPolicy":"Foreground"`); err != nil {
		t.Fatal(err)
	}
	equal(t, "finalizers of a Pod that was going", fmt.Sprint(valueAt(w.get(w.pods("q")), "metadata.finalizers")), "<nil>")
	w.web("r")
	if err := w.evict("r", `"propagationPolicy":"Foreground"`); err != nil {
		t.Fatal(err)
	}
	equal(t, "finalizers", fmt.Sprint(valueAt(w.get(w.pods("r")), "metadata.finalizers")), "[foregroundDeletion]")
}

// What is wrong with an Eviction by itself. policy/v1beta1 is the same kind by its old name.
func TestEvictionRefused(t *testing.T) {
	w := newWorld(t)
	w.web("p")
	post := func(text string) error {
		_, _, err := w.PostSubresource(w.ctx, w.pods("p").sub("eviction"), Body{Tree: decode(t, text)}, w.caller)
		return err
	}
	w.refused(post(`{"metadata":{"name":"q"}}`), 400, metav1.StatusReasonBadRequest, "name in URL does not match name in Eviction object")
	w.refused(post(`{"apiVersion":"policy/v2","metadata":{"name":"p"}}`), 400, metav1.StatusReasonBadRequest, "expected API version (policy/v1)")
	w.refused(w.evict("p", `"ignoreStoreReadErrorWithClusterBreakingPotential":true`), 422, metav1.StatusReasonInvalid, "can not be set for pod eviction, try after removing the option")
	w.refused(w.evict("p", `"propagationPolicy":"x"`), 422, metav1.StatusReasonInvalid, "propagationPolicy: Unsupported value")
	w.refused(w.evict("none", ""), 404, metav1.StatusReasonNotFound, `pods "none" not found`)
	w.caller.DryRun = true
	w.refused(w.evict("p", `"dryRun":["x"]`), 500, metav1.StatusReasonUnknown, "Non-matching dry-run options in request and content: [All] and [x]")
	w.caller.DryRun = false
	equal(t, "after all that", w.evicted("p"), staying)
	if err := post(`{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"p"}}`); err != nil {
		t.Fatal(err)
	}
	equal(t, "by the old name", w.evicted("p"), going)
}

// SCD-040: a Binding that is posted to bindings binds the Pod of its name, and nothing is stored of it.
func TestLegacyBinding(t *testing.T) {
	w := newWorld(t)
	w.pod("p")
	post := func(text string) error {
		_, _, err := w.PostSubresource(w.ctx, w.at("", "v1", "bindings", "default"), Body{Tree: decode(t, text)}, w.caller)
		return err
	}
	w.refused(post(`{"target":{"kind":"X","name":"m"}}`), 500, metav1.StatusReasonUnknown, `target.kind: Unsupported value: "X"`)
	w.refused(post(`{"metadata":{"generateName":"p"},"target":{"name":"m"}}`), 400, metav1.StatusReasonBadRequest, "Name parameter required.")
	w.refused(post(`{"metadata":{"name":"none"},"target":{"name":"m"}}`), 404, metav1.StatusReasonNotFound, `pods "none" not found`)
	w.refused(post(`{"metadata":{"name":"p","resourceVersion":"1"},"target":{"name":"m"}}`), 409, metav1.StatusReasonConflict, "ResourceVersion in precondition: 1")
	before := w.newestChange()
	if err := post(`{"metadata":{"name":"p","uid":"ignored"},"target":{"name":"m"}}`); err != nil {
		t.Fatal(err)
	}
	equal(t, "node", valueAt(w.get(w.pods("p")), "spec.nodeName"), "m")
	equal(t, "changes", len(w.changes(before)), 1)
	w.refused(post(`{"metadata":{"name":"p"},"target":{"name":"m"}}`), 409, metav1.StatusReasonConflict, `pods/binding "p": pod p is already assigned to node "m"`)
}

// SUB-028: a plugin that wants to know when a write has ended hears of the budget's too, which an eviction takes along, also where the
// Pod is only marked, and where another write gets in between. A ResourceQuota of the namespace is not counted before.
func TestEvictionEnds(t *testing.T) {
	w := newWorld(t)
	w.web("marked", "overtaken")
	w.budget("b", "", `{"observedGeneration":1,"disruptionsAllowed":2,"currentHealthy":2}`)
	begun, open := map[string]int{}, 0
	w.Admission = admission.Plugins{&plugin{validate: func(_ context.Context, r *admission.Request) error {
		begun[r.Resource.Resource]++
		open++
		r.Ended(func() { open-- })
		return nil
	}}}
	for i, pod := range []string{"marked", "overtaken"} {
		if pod == "overtaken" {
			meanwhile(w, func() { w.mustPatch(w.budgets("b"), merging, `{"metadata":{"labels":{"a":"b"}}}`) })
		}
		if err := w.evict(pod, ""); err != nil {
			t.Fatal(pod, err)
		}
		equal(t, pod, w.evicted(pod), going)
		if open != 0 || begun["poddisruptionbudgets"] <= i {
			t.Errorf("%s: %d writes have not ended, of %v", pod, open, begun)
		}
	}
}
