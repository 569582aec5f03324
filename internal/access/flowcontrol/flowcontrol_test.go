package flowcontrol_test

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/user"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
)

// fixture is a Controller with a store and a fake clock.
type fixture struct {
	testing.TB
	*flowcontrol.Controller
	store storage.Store
	clock *clocktesting.FakeClock
}

func newFixture(t testing.TB, c flowcontrol.Config) *fixture {
	store, err := embedded.Open(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	if c.RequestTimeout == 0 {
		c.RequestTimeout = time.Minute
	}
	clock := clocktesting.NewFakeClock(time.Now())
	return &fixture{t, flowcontrol.New(c, store.Head, clock), store, clock}
}

// put stores an object. A nil spec deletes the object.
func (fx *fixture) put(plural, name string, spec any) {
	fx.Helper()
	write := storage.Write{Key: "/registry/" + plural + "/" + name}
	if rec := fx.store.Head().Get(write.Key); rec != nil {
		write.Expected = rec.Modified
	}
	if spec != nil {
		var err error
		meta := metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}
		if write.Value, err = json.Marshal(map[string]any{"metadata": meta, "spec": spec}); err != nil {
			fx.Fatal(err)
		}
	}
	if _, err := fx.store.Commit(fx.Context(), []storage.Write{write}); err != nil {
		fx.Fatal(err)
	}
}

// level stores a priority level that has nearly all seats. If queues is 0, the level rejects requests instead of
// queuing them.
func (fx *fixture) level(name string, queues, hand, length int32) {
	shares, none := int32(995), int32(0)
	l := &flowcontrolv1.LimitedPriorityLevelConfiguration{
		NominalConcurrencyShares: &shares, BorrowingLimitPercent: &none,
	}
	if l.LimitResponse.Type = flowcontrolv1.LimitResponseTypeReject; queues > 0 {
		l.LimitResponse = flowcontrolv1.LimitResponse{
			Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: &flowcontrolv1.QueuingConfiguration{
				Queues: queues, HandSize: hand, QueueLengthLimit: length,
			},
		}
	}
	fx.put("prioritylevelconfigurations", name, flowcontrolv1.PriorityLevelConfigurationSpec{
		Type: flowcontrolv1.PriorityLevelEnablementLimited, Limited: l,
	})
}

// schema stores a FlowSchema that matches all users and has one flow per user.
func (fx *fixture) schema(name, level string, precedence int32) {
	fx.put("flowschemas", name, flowcontrolv1.FlowSchemaSpec{
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: level},
		MatchingPrecedence:         precedence,
		DistinguisherMethod: &flowcontrolv1.FlowDistinguisherMethod{
			Type: flowcontrolv1.FlowDistinguisherMethodByUserType,
		},
		Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
			Subjects: []flowcontrolv1.Subject{{Kind: "Group", Group: &flowcontrolv1.GroupSubject{Name: "*"}}},
			ResourceRules: []flowcontrolv1.ResourcePolicyRule{
				{
					Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, ClusterScope: true,
					Namespaces: []string{"*"},
				},
			},
		}},
	})
}

// by returns a request of a user in groups.
func by(name string, groups ...string) *access.Attributes {
	return &access.Attributes{
		User: &user.DefaultInfo{Name: name, Groups: groups},
		Verb: "get", Resource: true, Version: "v1", Plural: "pods", Namespace: "default", Name: "a",
	}
}

// mustTake takes a seat, and fails the test if no seat is free.
func (fx *fixture) mustTake(a *access.Attributes) *flowcontrol.Seat {
	fx.Helper()
	ctx, cancel := context.WithCancel(fx.Context())
	cancel() // with a canceled context, Take does not wait for a seat
	s, ok := fx.Take(ctx, a, fx.clock.Now())
	if !ok {
		fx.Fatalf("%s got no seat", a.User.GetName())
	}
	return &s
}

// result is the result of Take for a request of a user.
type result struct {
	user string
	seat *flowcontrol.Seat
	ok   bool
}

// queue sends a request of a user and returns when it waits at a level. out receives the result.
func (fx *fixture) queue(ctx context.Context, level, user string, out chan<- result) {
	fx.Helper()
	before := fx.Queued(level)
	now := fx.clock.Now()
	go func() {
		s, ok := fx.Take(ctx, by(user), now)
		out <- result{user, &s, ok}
	}()
	for fx.Queued(level) == before {
		runtime.Gosched()
	}
}

// TestGreedyUserDoesNotDelayOthers checks that a user with many requests delays only itself. A request of another user
// of the same FlowSchema is dispatched after at most one request of each of the four queues of the first user.
func TestGreedyUserDoesNotDelayOthers(t *testing.T) {
	fx := newFixture(t, flowcontrol.Config{MaxReads: 2})
	fx.level("l", 64, 4, 50)
	fx.schema("s", "l", 500)
	running := []*flowcontrol.Seat{fx.mustTake(by("greedy")), fx.mustTake(by("greedy"))}
	out := make(chan result)
	for range 40 {
		fx.queue(t.Context(), "l", "greedy", out)
	}
	fx.queue(t.Context(), "l", "modest", out)
	var order []string
	for range 41 {
		fx.clock.Step(100 * time.Millisecond)
		running[0].Release(fx.clock.Now)
		next := <-out
		if !next.ok {
			t.Fatalf("%s was rejected", next.user)
		}
		running, order = append(running[1:], next.seat), append(order, next.user)
	}
	if slices.Index(order, "modest") > 4 {
		t.Errorf("got order %q, want modest among the first five", order)
	}
	for _, s := range running {
		s.Release(fx.clock.Now)
		s.Release(fx.clock.Now) // has no effect
	}
	fx.mustTake(by("a"))
	fx.mustTake(by("b"))
	if s, ok := fx.Take(canceled(t), by("c"), fx.clock.Now()); ok {
		t.Errorf("got a third seat: %v", s)
	}
}

// TestQueuesByWork checks that the total duration of a user's requests counts, not their number. A user whose requests
// arrive later than those of others gets no credit for the time before.
func TestQueuesByWork(t *testing.T) {
	fx := newFixture(t, flowcontrol.Config{MaxReads: 1})
	fx.level("l", 64, 1, 50)
	fx.schema("s", "l", 500)
	running, out := fx.mustTake(by("slow")), make(chan result)
	duration := map[string]time.Duration{"slow": time.Second, "fast": 10 * time.Millisecond, "late": time.Second}
	next := func() string {
		t.Helper()
		running.Release(fx.clock.Now)
		n := <-out
		if running = n.seat; !n.ok {
			t.Fatalf("%s was rejected", n.user)
		}
		fx.clock.Step(duration[n.user])
		return n.user
	}
	for range 10 {
		fx.queue(t.Context(), "l", "slow", out)
		fx.queue(t.Context(), "l", "fast", out)
	}
	slow := 0
	for fast := 0; fast < 10; {
		if next() == "slow" {
			slow++
		} else {
			fast++
		}
	}
	if slow > 2 {
		t.Errorf("%d slow requests were dispatched before 10 fast ones, want at most 2", slow)
	}
	for range 5 - slow {
		next()
	}
	for range 3 {
		fx.queue(t.Context(), "l", "late", out)
	}
	if first := []string{next(), next(), next()}; !slices.Contains(first, "slow") {
		t.Errorf("got order %q, want a slow request among the first three", first)
	}
	for range 8 - 3 {
		next()
	}
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// TestExempt checks that exempt requests never wait and take no seat from other levels.
func TestExempt(t *testing.T) {
	fx := newFixture(t, flowcontrol.Config{MaxReads: 1})
	fx.level("l", 0, 0, 0)
	fx.schema("s", "l", 500)
	for range 10 {
		fx.mustTake(by("root", user.SystemPrivilegedGroup))
	}
	fx.mustTake(by("a"))
	fx.mustTake(by("root", user.SystemPrivilegedGroup))
}

// TestRejected checks that rejected requests get a Retry-After and the UIDs of the matched objects, and that the metric
// counts them by reason.
func TestRejected(t *testing.T) {
	fx := newFixture(t, flowcontrol.Config{MaxReads: 1})
	fx.level("l", 0, 0, 0)
	fx.schema("s", "l", 500)
	first := fx.mustTake(by("a"))
	expectRejected := func(ctx context.Context) {
		t.Helper()
		s, ok := fx.Take(ctx, by("b"), fx.clock.Now())
		schema, level := s.Matched()
		if ok || fx.RetryAfter(&s) != 1 || fmt.Sprint(schema, level) != "[uid-s] [uid-l]" {
			t.Errorf("got seat %v, matched %v %v, retry after %d s", ok, schema, level, fx.RetryAfter(&s))
		}
		s.Release(fx.clock.Now) // has no effect, because s has no seat
	}
	expectRejected(t.Context())
	fx.level("l", 1, 1, 2)
	out := make(chan result)
	cancelable, cancelFirst := context.WithCancel(t.Context())
	fx.queue(cancelable, "l", "a", out)
	fx.queue(t.Context(), "l", "b", out)
	expectRejected(t.Context()) // because the queue is full
	cancelFirst()
	if next := <-out; next.ok || next.user != "a" {
		t.Errorf("canceled request: got %v, want a without a seat", next)
	}
	fx.clock.Step(14 * time.Second)
	short, cancel := context.WithDeadline(t.Context(), fx.clock.Now().Add(2*time.Second))
	defer cancel()
	fx.queue(short, "l", "c", out)
	fx.clock.Step(600 * time.Millisecond) // a quarter of two seconds
	if next := <-out; next.ok || next.user != "c" {
		t.Errorf("request with a timeout of 2 s: got %v, want c without a seat", next)
	}
	fx.clock.Step(time.Second) // b has now waited more than a quarter of a minute
	if next := <-out; next.ok || next.user != "b" {
		t.Errorf("request with a timeout of 1 min: got %v, want b without a seat", next)
	}
	first.Release(fx.clock.Now)
	fx.mustTake(by("d"))
	if err := testutil.CollectAndCompare(fx, strings.NewReader(`
# HELP apiserver_flowcontrol_rejected_requests_total Number of requests rejected by API Priority and Fairness subsystem
# TYPE apiserver_flowcontrol_rejected_requests_total counter
apiserver_flowcontrol_rejected_requests_total{flow_schema="s",priority_level="l",reason="concurrency-limit"} 1
apiserver_flowcontrol_rejected_requests_total{flow_schema="s",priority_level="l",reason="queue-full"} 1
apiserver_flowcontrol_rejected_requests_total{flow_schema="s",priority_level="l",reason="time-out"} 3
`), "apiserver_flowcontrol_rejected_requests_total"); err != nil {
		t.Error(err)
	}
}

// TestInForceWhenWritten checks that writes and deletions of objects are in force at once, and that requests keep the
// seats they have.
func TestInForceWhenWritten(t *testing.T) {
	fx := newFixture(t, flowcontrol.Config{MaxReads: 600})
	expect := func(want string) {
		t.Helper()
		if schema, level := fx.Names(by("a")); schema+" "+level != want {
			t.Errorf("got FlowSchema and level %s %s, want %s", schema, level, want)
		}
	}
	expect("catch-all catch-all")
	fx.schema("s", "l", 500)
	expect("catch-all catch-all") // the level l does not exist
	fx.level("l", 0, 0, 0)
	expect("s l")
	s := fx.mustTake(by("a"))
	fx.schema("t", "l", 500) // same precedence, so the name that sorts first is used
	expect("s l")
	fx.schema("t", "l", 499)
	expect("t l")
	fx.put("prioritylevelconfigurations", "l", nil)
	expect("catch-all catch-all")
	s.Release(fx.clock.Now)
	fx.level("l", 0, 0, 0)
	fx.put("flowschemas", "t", nil)
	expect("s l")
	fx.put("flowschemas", "s", nil)
	expect("catch-all catch-all")
}

// TestLending checks that a busy level borrows seats from an idle one, and returns them when the idle level needs them.
func TestLending(t *testing.T) {
	fx := newFixture(t, flowcontrol.Config{MaxReads: 100})
	for _, l := range bootstrap.MandatoryPriorityLevelConfigurations {
		fx.put("prioritylevelconfigurations", l.Name, l.Spec)
	}
	level := func(name string, borrowing *int32) {
		shares, lendable := int32(95), int32(90)
		fx.put("prioritylevelconfigurations", name, flowcontrolv1.PriorityLevelConfigurationSpec{Type: "Limited",
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: &shares, LendablePercent: &lendable,
				BorrowingLimitPercent: borrowing,
				LimitResponse:         flowcontrolv1.LimitResponse{Type: "Reject"},
			}})
	}
	level("busy", nil)
	level("idle", nil)
	fx.schema("s", "busy", 500)
	fx.Names(by("a"))
	var seats []*flowcontrol.Seat
	for range 3 {
		for len(seats) < fx.Limit("busy") {
			seats = append(seats, fx.mustTake(by("a")))
		}
		fx.clock.Step(10 * time.Second)
		fx.Names(by("a"))
	}
	if n := fx.Limit("busy"); n < 80 {
		t.Errorf("busy level: got %d seats of 100, want at least 80", n)
	}
	if n := fx.Limit("idle"); n < 5 || n > 12 { // its lower limit is a tenth of 49 seats
		t.Errorf("idle level: got %d seats of 100, want 5 to 12", n)
	}
	for _, s := range seats {
		s.Release(fx.clock.Now)
	}
	fx.schema("s", "idle", 500)
	for range 60 {
		for fx.Names(by("a")); ; {
			s, ok := fx.Take(t.Context(), by("a"), fx.clock.Now())
			if !ok {
				break
			}
			defer s.Release(fx.clock.Now)
		}
		fx.clock.Step(10 * time.Second)
	}
	if fx.Names(by("a")); fx.Limit("idle") < 45 {
		t.Errorf("previously idle level: got %d seats of 100, want at least 45", fx.Limit("idle"))
	}
	none := int32(0)
	level("idle", &none)
	if fx.Names(by("a")); fx.Limit("idle") > 49 {
		t.Errorf("level that may not borrow: got %d seats of 100, want at most 49", fx.Limit("idle"))
	}
}

// TestLentSeatsAreReturned checks a request that waits at a level which has lent all its seats. The request gets a
// seat at the next adjustment, even if no other request arrives.
func TestLentSeatsAreReturned(t *testing.T) {
	fx := newFixture(t, flowcontrol.Config{MaxReads: 100})
	fx.level("most", 0, 0, 0)
	shares, all := int32(995), int32(100)
	fx.put("prioritylevelconfigurations", "l", flowcontrolv1.PriorityLevelConfigurationSpec{Type: "Limited",
		Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
			NominalConcurrencyShares: &shares, LendablePercent: &all,
			LimitResponse: flowcontrolv1.LimitResponse{
				Type:    "Queue",
				Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 1},
			},
		}})
	fx.schema("s", "l", 500)
	if fx.Names(by("a")); fx.Limit("l") != 0 {
		t.Fatalf("got %d seats, want 0", fx.Limit("l"))
	}
	out := make(chan result)
	fx.queue(t.Context(), "l", "a", out)
	for fx.clock.Waiters() < 2 { // wait until Take has created the timer of the timeout and the ticker of adjustments
		runtime.Gosched()
	}
	fx.clock.Step(10 * time.Second)
	if next := <-out; !next.ok {
		t.Error("the request was rejected")
	}
}

// TestDisabled checks that only the limits MaxReads and MaxWrites apply without API Priority and Fairness. They do not
// apply to system:masters.
func TestDisabled(t *testing.T) {
	fx := newFixture(t, flowcontrol.Config{Disabled: true, MaxReads: 1})
	first, write := fx.mustTake(by("a")), by("a")
	write.Verb = "update"
	fx.mustTake(write)
	fx.mustTake(write)
	fx.mustTake(by("root", user.SystemPrivilegedGroup)).Release(fx.clock.Now)
	s, ok := fx.Take(t.Context(), by("b"), fx.clock.Now())
	if schema, _ := s.Matched(); ok || schema != nil || fx.RetryAfter(&s) != 1 {
		t.Errorf("got seat %v, FlowSchema %v, retry after %d s", ok, schema, fx.RetryAfter(&s))
	}
	first.Release(fx.clock.Now)
	fx.mustTake(by("b"))
}

// BenchmarkTake measures Take and Release without waiting requests.
func BenchmarkTake(b *testing.B) {
	fx := newFixture(b, flowcontrol.Config{MaxReads: 400, MaxWrites: 200})
	for _, s := range append(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas...) {
		fx.put("flowschemas", s.Name, s.Spec)
	}
	for _, l := range append(bootstrap.MandatoryPriorityLevelConfigurations,
		bootstrap.SuggestedPriorityLevelConfigurations...) {
		fx.put("prioritylevelconfigurations", l.Name, l.Spec)
	}
	for name, a := range map[string]*access.Attributes{
		"exempt": by("root", user.SystemPrivilegedGroup, user.AllAuthenticated),
		"user":   by("jane", "devs", user.AllAuthenticated),
		"account": by("system:serviceaccount:ns:sa", "system:serviceaccounts", "system:serviceaccounts:ns",
			user.AllAuthenticated),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					s, ok := fx.Take(context.Background(), a, time.Now())
					if !ok {
						b.Error("rejected")
					}
					s.Release(time.Now)
				}
			})
		})
	}
}
