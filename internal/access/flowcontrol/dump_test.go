package flowcontrol_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/mux"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
)

// dump returns the lines of a dump with repeated blanks removed.
func dump(handler http.Handler, url string) []string {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
	text := regexp.MustCompile(" +").ReplaceAllString(w.Body.String(), " ")
	return strings.Split(strings.TrimSpace(strings.ReplaceAll(text, " \n", "\n")), "\n")
}

func (fx *fixture) dump(name string) []string {
	return dump(fx.Dump(name), "/?includeRequestDetails=1")
}

// TestDumpsAsUpstream checks that the dumps have the columns and rows of upstream's. It ignores the queues of requests
// that did not wait.
func TestDumpsAsUpstream(t *testing.T) {
	marker := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "marker"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			MatchingPrecedence: 1, PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{
				Name: "workload-low",
			},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{Subjects: []flowcontrolv1.Subject{
				{Kind: "User", User: &flowcontrolv1.UserSubject{Name: "marker"}},
			},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"},
					Resources: []string{"*"}, Namespaces: []string{"*"}}}}}}}
	o := newUpstreamFilter(t, append([]*flowcontrolv1.FlowSchema{marker}, bootstrap.SuggestedFlowSchemas...))
	fx := newFixture(t, flowcontrol.Config{MaxReads: 400, MaxWrites: 200})
	for _, l := range append(bootstrap.MandatoryPriorityLevelConfigurations,
		bootstrap.SuggestedPriorityLevelConfigurations...) {
		fx.put("prioritylevelconfigurations", l.Name, l.Spec)
	}
	m := mux.NewPathRecorderMux("dumps")
	o.Install(m)
	compare := func(name, query string, mask *regexp.Regexp) {
		t.Helper()
		want := dump(m, "/debug/api_priority_and_fairness/"+name+query)
		got := dump(fx.Dump(name), "/"+query)
		for _, lines := range [][]string{want, got} {
			for i := range lines {
				lines[i] = mask.ReplaceAllString(lines[i], "")
			}
			slices.Sort(lines)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s%s: %s\nupstream %s", name, query, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	root := by("root", user.SystemPrivilegedGroup)
	root.Path, root.Group, root.Subresource = "/apis/g/v1/namespaces/default/pods/a/log", "g", "log"
	info := &apirequest.RequestInfo{IsResourceRequest: true, Path: root.Path, Verb: root.Verb, APIGroup: root.Group,
		APIVersion: root.Version,
		Namespace:  root.Namespace, Resource: root.Plural, Subresource: root.Subresource, Name: root.Name}
	o.Handle(context.Background(), utilflowcontrol.RequestDigest{RequestInfo: info, User: root.User},
		func(*flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration, string) {},
		func() fcrequest.WorkEstimate { return fcrequest.WorkEstimate{InitialSeats: 1} }, nil, func() {
			seat, _ := fx.Take(t.Context(), root, fx.clock.Now())
			defer seat.Release(fx.clock.Now)
			compare("dump_priority_levels", "",
				regexp.MustCompile(`(workload-low|catch-all), 0, true, false, 0, 0, \d+`)) // rows of the marker request
			compare("dump_requests", "", regexp.MustCompile(`2\d{3}-\S+Z`))
			compare("dump_queues", "", regexp.MustCompile(`\d+\.\d+ss`))
		})
}

// TestDump checks that the dumps show all requests that wait or have a seat, the queues, and the counters of the
// levels. A level whose object is deleted is shown while it has requests.
func TestDump(t *testing.T) {
	fx := newFixture(t, flowcontrol.Config{MaxReads: 1})
	fx.level("l", 1, 1, 2)
	fx.schema("s", "l", 500)
	start := fx.clock.Now().UTC().Format(time.RFC3339Nano)
	first, out := fx.mustTake(by("a")), make(chan result)
	fx.queue(t.Context(), "l", "b", out)
	cancelable, cancel := context.WithCancel(t.Context())
	fx.queue(cancelable, "l", "c", out)
	if _, ok := fx.Take(t.Context(), by("d"), fx.clock.Now()); ok {
		t.Fatal("got a seat for d, want the queue to be full")
	}
	shows := func(name string, want ...string) {
		t.Helper()
		lines := fx.dump(name)[1:]
		got := slices.DeleteFunc(lines, func(line string) bool { return !strings.HasPrefix(line, "l,") })
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %s\nwant %s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	row := func(user string, queue, position int, started string) string {
		return fmt.Sprintf("l, s, %d, %d, %s, %s, 1, 0, 0s, %s, %[3]s, get, , default, a, v1, pods,",
			queue, position, user, start, started)
	}
	const notStarted = "0001-01-01T00:00:00Z"
	shows("dump_priority_levels", "l, 1, false, false, 2, 1, 1, 1, 0, 0")
	shows("dump_queues", "l, 0, 2, 0, 0, 0.00000000ss, 2, 2, 0.00600000ss")
	shows("dump_requests", row("b", 0, 0, notStarted), row("c", 0, 1, notStarted), row("a", -1, -1, start))
	cancel()
	if c := <-out; c.ok || c.user != "c" {
		t.Fatalf("got %v, want c without a seat", c)
	}
	shows("dump_priority_levels", "l, 1, false, false, 1, 1, 1, 2, 0, 1")
	fx.clock.Step(time.Second)
	first.Release(fx.clock.Now)
	b := <-out
	if shows("dump_requests", row("b", 0, -1, fx.clock.Now().UTC().Format(time.RFC3339Nano))); !b.ok {
		t.Error("b has no seat")
	}
	shows("dump_queues", "l, 0, 0, 1, 1, 0.00300000ss, 0, 0, 0.00000000ss")
	fx.put("flowschemas", "s", nil)
	fx.put("prioritylevelconfigurations", "l", nil)
	shows("dump_priority_levels", "l, 0, false, true, 0, 1, 2, 2, 0, 1")
	b.seat.Release(fx.clock.Now)
	shows("dump_priority_levels")
	if fx.Dump("dump_nothing") != nil || newFixture(t, flowcontrol.Config{Disabled: true}).Dump("dump_queues") != nil {
		t.Error("got a dump handler for an unknown name or while disabled")
	}
}
