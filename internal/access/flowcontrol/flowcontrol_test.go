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

// world is a Controller over a store, at a time of its own.
type world struct {
	testing.TB
	*flowcontrol.Controller
	store storage.Store
	clock *clocktesting.FakeClock
}

func newWorld(t testing.TB, c flowcontrol.Config) *world {
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
	return &world{t, flowcontrol.New(c, store.Head, clock), store, clock}
}

// put stores an object; without a spec it is taken away.
func (w *world) put(plural, name string, spec any) {
	w.Helper()
	write := storage.Write{Key: "/registry/" + plural + "/" + name}
	if rec := w.store.Head().Get(write.Key); rec != nil {
		write.Expected = rec.Modified
	}
	if spec != nil {
		var err error
		if write.Value, err = json.Marshal(map[string]any{"metadata": metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}, "spec": spec}); err != nil {
			w.Fatal(err)
		}
	}
	if _, err := w.store.Commit(w.Context(), []storage.Write{write}); err != nil {
		w.Fatal(err)
	}
}

// level stores a priority level that has nearly all seats; queues 0: it refuses.
func (w *world) level(name string, queues, hand, length int32) {
	shares, none := int32(995), int32(0)
	l := &flowcontrolv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: &shares, BorrowingLimitPercent: &none}
	if l.LimitResponse.Type = flowcontrolv1.LimitResponseTypeReject; queues > 0 {
		l.LimitResponse = flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: &flowcontrolv1.QueuingConfiguration{Queues: queues, HandSize: hand, QueueLengthLimit: length}}
	}
	w.put("prioritylevelconfigurations", name, flowcontrolv1.PriorityLevelConfigurationSpec{Type: flowcontrolv1.PriorityLevelEnablementLimited, Limited: l})
}

// schema stores a FlowSchema of its own name for everybody, whose flows are the users'.
func (w *world) schema(name, level string, precedence int32) {
	w.put("flowschemas", name, flowcontrolv1.FlowSchemaSpec{
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: level}, MatchingPrecedence: precedence,
		DistinguisherMethod: &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
		Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
			Subjects:      []flowcontrolv1.Subject{{Kind: "Group", Group: &flowcontrolv1.GroupSubject{Name: "*"}}},
			ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, ClusterScope: true, Namespaces: []string{"*"}}},
		}},
	})
}

// by is a request of a user, who may be in groups.
func by(name string, groups ...string) *access.Attributes {
	return &access.Attributes{User: &user.DefaultInfo{Name: name, Groups: groups}, Verb: "get", Resource: true, Version: "v1", Plural: "pods", Namespace: "default", Name: "a"}
}

// mustTake takes a seat that has to be free.
func (w *world) mustTake(a *access.Attributes) *flowcontrol.Seat {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	cancel() // who has to wait does not get one
	s, ok := w.Take(ctx, a, w.clock.Now())
	if !ok {
		w.Fatalf("%s has no seat", a.User.GetName())
	}
	return &s
}

type taken struct {
	who  string
	seat *flowcontrol.Seat
	ok   bool
}

// queue has a request wait at a level, and returns when it does.
func (w *world) queue(ctx context.Context, level, who string, out chan<- taken) {
	w.Helper()
	before := w.Queued(level)
	now := w.clock.Now()
	go func() {
		s, ok := w.Take(ctx, by(who), now)
		out <- taken{who, &s, ok}
	}()
	for w.Queued(level) == before {
		runtime.Gosched()
	}
}

// Who asks for much waits for itself: another user of the same FlowSchema is next when each of the four queues of that one has had a turn.
func TestGreedyUserHoldsUpNobody(t *testing.T) {
	w := newWorld(t, flowcontrol.Config{MaxReads: 2})
	w.level("l", 64, 4, 50)
	w.schema("s", "l", 500)
	running := []*flowcontrol.Seat{w.mustTake(by("greedy")), w.mustTake(by("greedy"))}
	out := make(chan taken)
	for range 40 {
		w.queue(t.Context(), "l", "greedy", out)
	}
	w.queue(t.Context(), "l", "modest", out)
	var order []string
	for range 41 {
		w.clock.Step(100 * time.Millisecond)
		running[0].Release(w.clock.Now)
		next := <-out
		if !next.ok {
			t.Fatalf("%s was refused", next.who)
		}
		running, order = append(running[1:], next.seat), append(order, next.who)
	}
	if slices.Index(order, "modest") > 4 {
		t.Errorf("the order is %q", order)
	}
	for _, s := range running {
		s.Release(w.clock.Now)
		s.Release(w.clock.Now) // which counts once
	}
	w.mustTake(by("a"))
	w.mustTake(by("b"))
	if s, ok := w.Take(canceled(t), by("c"), w.clock.Now()); ok {
		t.Errorf("there are more seats than two: %v", s)
	}
}

// What counts is how long requests take, not how many they are; and who comes late has no claim on what was before.
func TestTurnsByWork(t *testing.T) {
	w := newWorld(t, flowcontrol.Config{MaxReads: 1})
	w.level("l", 64, 1, 50)
	w.schema("s", "l", 500)
	running, out := w.mustTake(by("slow")), make(chan taken)
	lasts := map[string]time.Duration{"slow": time.Second, "fast": 10 * time.Millisecond, "late": time.Second}
	next := func() string {
		t.Helper()
		running.Release(w.clock.Now)
		n := <-out
		if running = n.seat; !n.ok {
			t.Fatalf("%s was refused", n.who)
		}
		w.clock.Step(lasts[n.who])
		return n.who
	}
	for range 10 {
		w.queue(t.Context(), "l", "slow", out)
		w.queue(t.Context(), "l", "fast", out)
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
		t.Errorf("%d slow requests have had their turn before 10 fast ones", slow)
	}
	for range 5 - slow {
		next()
	}
	for range 3 {
		w.queue(t.Context(), "l", "late", out)
	}
	if first := []string{next(), next(), next()}; !slices.Contains(first, "slow") {
		t.Errorf("who came late was served first: %q", first)
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

// Who is exempt never waits, and takes nobody's seat.
func TestExempt(t *testing.T) {
	w := newWorld(t, flowcontrol.Config{MaxReads: 1})
	w.level("l", 0, 0, 0)
	w.schema("s", "l", 500)
	for range 10 {
		w.mustTake(by("root", user.SystemPrivilegedGroup))
	}
	w.mustTake(by("a"))
	w.mustTake(by("root", user.SystemPrivilegedGroup))
}

// Who is refused is told for how long, by the level, and counted with the reason.
func TestRefused(t *testing.T) {
	w := newWorld(t, flowcontrol.Config{MaxReads: 1})
	w.level("l", 0, 0, 0)
	w.schema("s", "l", 500)
	first := w.mustTake(by("a"))
	refused := func(ctx context.Context) {
		t.Helper()
		s, ok := w.Take(ctx, by("b"), w.clock.Now())
		schema, level := s.Matched()
		if ok || w.RetryAfter(&s) != 1 || fmt.Sprint(schema, level) != "[uid-s] [uid-l]" {
			t.Errorf("%v: matched %v %v, again after %d s", ok, schema, level, w.RetryAfter(&s))
		}
		s.Release(w.clock.Now) // a seat that it does not have
	}
	refused(t.Context())
	w.level("l", 1, 1, 2)
	out := make(chan taken)
	leaving, leave := context.WithCancel(t.Context())
	w.queue(leaving, "l", "a", out)
	w.queue(t.Context(), "l", "b", out)
	refused(t.Context()) // by the queue
	leave()
	if next := <-out; next.ok || next.who != "a" {
		t.Errorf("who has left got %v", next)
	}
	w.clock.Step(14 * time.Second)
	impatient, cancel := context.WithDeadline(t.Context(), w.clock.Now().Add(2*time.Second))
	defer cancel()
	w.queue(impatient, "l", "c", out)
	w.clock.Step(600 * time.Millisecond) // a quarter of two seconds
	if next := <-out; next.ok || next.who != "c" {
		t.Errorf("who has little time got %v", next)
	}
	w.clock.Step(time.Second) // a quarter of a minute, in all
	if next := <-out; next.ok || next.who != "b" {
		t.Errorf("who has waited for long got %v", next)
	}
	first.Release(w.clock.Now)
	w.mustTake(by("d"))
	if err := testutil.CollectAndCompare(w, strings.NewReader(`
# HELP apiserver_flowcontrol_rejected_requests_total Number of requests rejected by API Priority and Fairness subsystem
# TYPE apiserver_flowcontrol_rejected_requests_total counter
apiserver_flowcontrol_rejected_requests_total{flow_schema="s",priority_level="l",reason="concurrency-limit"} 1
apiserver_flowcontrol_rejected_requests_total{flow_schema="s",priority_level="l",reason="queue-full"} 1
apiserver_flowcontrol_rejected_requests_total{flow_schema="s",priority_level="l",reason="time-out"} 3
`), "apiserver_flowcontrol_rejected_requests_total"); err != nil {
		t.Error(err)
	}
}

// What is stored is in force at once, and what is gone no longer is; who is in a seat stays there.
func TestInForceWhenWritten(t *testing.T) {
	w := newWorld(t, flowcontrol.Config{MaxReads: 600})
	is := func(want string) {
		t.Helper()
		if schema, level := w.Names(by("a")); schema+" "+level != want {
			t.Errorf("a request is of %s %s, want %s", schema, level, want)
		}
	}
	is("catch-all catch-all")
	w.schema("s", "l", 500)
	is("catch-all catch-all") // there is no such level
	w.level("l", 0, 0, 0)
	is("s l")
	s := w.mustTake(by("a"))
	w.schema("t", "l", 500) // by name
	is("s l")
	w.schema("t", "l", 499)
	is("t l")
	w.put("prioritylevelconfigurations", "l", nil)
	is("catch-all catch-all")
	s.Release(w.clock.Now)
	w.level("l", 0, 0, 0)
	w.put("flowschemas", "t", nil)
	is("s l")
	w.put("flowschemas", "s", nil)
	is("catch-all catch-all")
}

// Seats that a level lends go to one that needs them, and come back.
func TestLending(t *testing.T) {
	w := newWorld(t, flowcontrol.Config{MaxReads: 100})
	for _, l := range bootstrap.MandatoryPriorityLevelConfigurations {
		w.put("prioritylevelconfigurations", l.Name, l.Spec)
	}
	level := func(name string, borrowing *int32) {
		shares, lendable := int32(95), int32(90)
		w.put("prioritylevelconfigurations", name, flowcontrolv1.PriorityLevelConfigurationSpec{Type: "Limited", Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
			NominalConcurrencyShares: &shares, LendablePercent: &lendable, BorrowingLimitPercent: borrowing, LimitResponse: flowcontrolv1.LimitResponse{Type: "Reject"},
		}})
	}
	level("busy", nil)
	level("idle", nil)
	w.schema("s", "busy", 500)
	w.Names(by("a"))
	var seats []*flowcontrol.Seat
	for range 3 {
		for len(seats) < w.Limit("busy") {
			seats = append(seats, w.mustTake(by("a")))
		}
		w.clock.Step(10 * time.Second)
		w.Names(by("a"))
	}
	if n := w.Limit("busy"); n < 80 {
		t.Errorf("the busy level has %d seats of 100", n)
	}
	if n := w.Limit("idle"); n < 5 || n > 12 { // a tenth of 49 is its own
		t.Errorf("the idle level has %d seats of 100", n)
	}
	for _, s := range seats {
		s.Release(w.clock.Now)
	}
	w.schema("s", "idle", 500)
	for range 60 {
		for w.Names(by("a")); ; {
			s, ok := w.Take(t.Context(), by("a"), w.clock.Now())
			if !ok {
				break
			}
			defer s.Release(w.clock.Now)
		}
		w.clock.Step(10 * time.Second)
	}
	if w.Names(by("a")); w.Limit("idle") < 45 {
		t.Errorf("the level that was idle has %d seats of 100", w.Limit("idle"))
	}
	none := int32(0)
	level("idle", &none)
	if w.Names(by("a")); w.Limit("idle") > 49 {
		t.Errorf("a level that may borrow nothing has %d seats of 100", w.Limit("idle"))
	}
}

// Who waits at a level that has lent all of its seats gets one with the next division, even if nobody else asks.
func TestLentSeatsComeBack(t *testing.T) {
	w := newWorld(t, flowcontrol.Config{MaxReads: 100})
	w.level("most", 0, 0, 0)
	shares, all := int32(995), int32(100)
	w.put("prioritylevelconfigurations", "l", flowcontrolv1.PriorityLevelConfigurationSpec{Type: "Limited", Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
		NominalConcurrencyShares: &shares, LendablePercent: &all,
		LimitResponse: flowcontrolv1.LimitResponse{Type: "Queue", Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 1}},
	}})
	w.schema("s", "l", 500)
	if w.Names(by("a")); w.Limit("l") != 0 {
		t.Fatalf("the level has %d seats", w.Limit("l"))
	}
	out := make(chan taken)
	w.queue(t.Context(), "l", "a", out)
	for w.clock.Waiters() < 2 { // for its turn and for the division
		runtime.Gosched()
	}
	w.clock.Step(10 * time.Second)
	if next := <-out; !next.ok {
		t.Error("it was refused")
	}
}

// Without priority and fairness only the two limits count, and not for administrators.
func TestDisabled(t *testing.T) {
	w := newWorld(t, flowcontrol.Config{Disabled: true, MaxReads: 1})
	first, write := w.mustTake(by("a")), by("a")
	write.Verb = "update"
	w.mustTake(write)
	w.mustTake(write)
	w.mustTake(by("root", user.SystemPrivilegedGroup)).Release(w.clock.Now)
	s, ok := w.Take(t.Context(), by("b"), w.clock.Now())
	if schema, _ := s.Matched(); ok || schema != nil || w.RetryAfter(&s) != 1 {
		t.Errorf("%v %v %d", ok, schema, w.RetryAfter(&s))
	}
	first.Release(w.clock.Now)
	w.mustTake(by("b"))
}

// What a turn costs where nobody waits.
func BenchmarkTake(b *testing.B) {
	w := newWorld(b, flowcontrol.Config{MaxReads: 400, MaxWrites: 200})
	for _, s := range append(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas...) {
		w.put("flowschemas", s.Name, s.Spec)
	}
	for _, l := range append(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations...) {
		w.put("prioritylevelconfigurations", l.Name, l.Spec)
	}
	for name, a := range map[string]*access.Attributes{
		"exempt": by("root", user.SystemPrivilegedGroup, user.AllAuthenticated), "user": by("jane", "devs", user.AllAuthenticated),
		"account": by("system:serviceaccount:ns:sa", "system:serviceaccounts", "system:serviceaccounts:ns", user.AllAuthenticated),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					s, ok := w.Take(context.Background(), a, time.Now())
					if !ok {
						b.Error("refused")
					}
					s.Release(time.Now)
				}
			})
		})
	}
}
