// Package flowcontrol is API Priority and Fairness by the FlowSchemas and PriorityLevelConfigurations in a store
// (https://kubernetes.io/docs/concepts/cluster-administration/flow-control/).
package flowcontrol

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/utils/clock"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Where the objects are stored.
const (
	flowSchemas    = "/registry/flowschemas/"
	priorityLevels = "/registry/prioritylevelconfigurations/"
)

// Config holds the values of kube-apiserver's flags.
type Config struct {
	Disabled            bool // only the two limits apply, as in upstream without API Priority and Fairness
	MaxReads, MaxWrites int  // --max-requests-inflight and --max-mutating-requests-inflight
	RequestTimeout      time.Duration
}

// Controller admits, queues and rejects requests. A write of its objects is in force once it has been answered.
// It is a prometheus.Collector.
type Controller struct {
	Config
	clock   clock.WithTicker
	dropped utilflowcontrol.DroppedRequestsTracker
	metrics *metrics
	fixed   [2]*flow // of a Config that is Disabled: reading, writing; nil without limit

	storage.Follower // of the plan
	plan             atomic.Pointer[plan]
	due              atomic.Int64 // when seats are to be lent anew, in nanoseconds

	mu      sync.Mutex // of what follows
	schemas map[string]*flowcontrolv1.FlowSchema
	configs map[string]*flowcontrolv1.PriorityLevelConfiguration
	levels  map[string]*level
	retired []*level // whose objects are gone, while they have requests
}

// New returns a Controller over the state that head returns.
func New(c Config, head func() *storage.Snapshot, clock clock.WithTicker) *Controller {
	x := &Controller{
		Config: c, clock: clock, dropped: utilflowcontrol.NewDroppedRequestsTracker(), metrics: newMetrics(),
		schemas: map[string]*flowcontrolv1.FlowSchema{}, configs: map[string]*flowcontrolv1.PriorityLevelConfiguration{}, levels: map[string]*level{},
	}
	for i, limit := range [...]int{c.MaxReads, c.MaxWrites} {
		if c.Disabled && limit > 0 {
			x.fixed[i] = &flow{level: &level{limit: limit}}
		}
	}
	x.Head, x.Advance = head, x.advance
	x.rebuild(clock.Now())
	return x
}

// Seat is the seat of a request in execution. The zero value is none.
type Seat struct {
	flow  *flow
	queue *queue // that it has waited in, if it has
	index int    // in the running requests of the level
	taken time.Time
	held  bool
}

// Take blocks until a request that has arrived at now has a seat, which the caller releases. It returns false if the request is rejected.
func (x *Controller) Take(ctx context.Context, a *access.Attributes, now time.Time) (Seat, bool) {
	f := x.classify(a, now)
	if f == nil {
		return Seat{}, true
	}
	s, w, why := f.level.take(f, a, now)
	if w != nil {
		why = x.wait(ctx, &s, w, now)
	}
	if s.held = why == ""; s.held {
		return s, true
	}
	if x.Disabled {
		return Seat{}, slices.Contains(a.User.GetGroups(), user.SystemPrivilegedGroup) // always executed, as in upstream
	}
	x.metrics.rejected.WithLabelValues(f.level.name, f.schema, why).Inc()
	x.dropped.RecordDroppedRequest(f.level.name)
	return s, false
}

// wait blocks until a queued request has a seat, for at most a quarter of the time of the request, as in upstream.
func (x *Controller) wait(ctx context.Context, s *Seat, w *waiter, now time.Time) (why string) {
	patience := x.RequestTimeout
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, deadline.Sub(now))
	}
	timer := x.clock.NewTimer(min(patience/4, time.Minute))
	defer timer.Stop()
	lend := x.clock.NewTicker(lendEvery)
	defer lend.Stop()
	for waiting := true; waiting; {
		select {
		case <-lend.C():
			x.lendWhenDue(x.clock.Now())
			continue
		case <-w.ready:
		case <-timer.C():
		case <-ctx.Done():
		}
		waiting = false
	}
	execute := "true"
	if s.taken = x.clock.Now(); !s.flow.level.keep(w, s, s.taken) {
		execute, why = "false", "time-out"
	}
	x.metrics.waited.WithLabelValues(s.flow.level.name, s.flow.schema, execute).Observe(s.taken.Sub(now).Seconds())
	return why
}

// RetryAfter returns the number of seconds after which a client may repeat a rejected request.
func (x *Controller) RetryAfter(s *Seat) int64 {
	if s.flow == nil {
		return 1
	}
	return x.dropped.GetRetryAfter(s.flow.level.name)
}

// Matched returns the values of the response headers: the UIDs of the FlowSchema and of the PriorityLevelConfiguration. They are shared;
// callers do not append to them.
func (s *Seat) Matched() (schema, level []string) {
	if s.flow == nil {
		return nil, nil
	}
	return s.flow.schemaUID, s.flow.levelUID
}

// Held reports whether the request has a seat.
func (s *Seat) Held() bool { return s.held }

// Release passes the seat on to the next request. It does nothing if the request has no seat.
func (s *Seat) Release(now func() time.Time) {
	if s.held {
		s.held = false
		s.flow.level.release(s, now())
	}
}

// classify returns the flow of a request, nil if the request needs no seat.
func (x *Controller) classify(a *access.Attributes, now time.Time) *flow {
	if x.Disabled {
		if a.IsReadOnly() {
			return x.fixed[0]
		}
		return x.fixed[1]
	}
	x.Refresh()
	x.lendWhenDue(now)
	return x.plan.Load().match(a)
}

// lendWhenDue lends seats if that is due. New and waiting requests call it; without requests there is nothing to lend.
func (x *Controller) lendWhenDue(now time.Time) {
	if now.UnixNano() < x.due.Load() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if now.UnixNano() >= x.due.Load() {
		x.lend(now)
	}
}

func (x *Controller) advance(seen, head *storage.Snapshot) {
	x.mu.Lock()
	defer x.mu.Unlock()
	changed := replace(x.schemas, head, seen, flowSchemas)
	if replace(x.configs, head, seen, priorityLevels) || changed {
		x.rebuild(x.clock.Now())
	}
}

// replace updates objects, by their storage keys, to head and reports whether any has changed.
func replace[T any](all map[string]*T, head, seen *storage.Snapshot, prefix string) (changed bool) {
	for was, is := range head.Since(seen, prefix) {
		changed = true
		if is == nil {
			delete(all, was.Key)
			continue
		}
		object := new(T)
		if err := kjson.UnmarshalCaseSensitivePreserveInts(is.Value, object); err != nil {
			delete(all, is.Key) // an object that does not decode is ignored
			continue
		}
		all[is.Key] = object
	}
	return changed
}
