// Package flowcontrol implements API Priority and Fairness with the FlowSchemas and PriorityLevelConfigurations in a
// store (https://kubernetes.io/docs/concepts/cluster-administration/flow-control/).
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

// Prefixes of storage keys.
const (
	flowSchemas    = "/registry/flowschemas/"
	priorityLevels = "/registry/prioritylevelconfigurations/"
)

// Config holds the values of kube-apiserver's flags.
type Config struct {
	Disabled            bool // enforce only MaxReads and MaxWrites, as upstream does without API Priority and Fairness
	MaxReads, MaxWrites int  // --max-requests-inflight and --max-mutating-requests-inflight
	RequestTimeout      time.Duration
}

// Controller admits, queues and rejects requests. A write of a FlowSchema or PriorityLevelConfiguration is in force as
// soon as it has returned. Controller is a prometheus.Collector.
type Controller struct {
	Config
	clock    clock.WithTicker
	dropped  utilflowcontrol.DroppedRequestsTracker
	metrics  *metrics
	inflight [2]*flow // used only if Config.Disabled: the flows of reads and of writes; nil means no limit

	storage.Follower // keeps plan up to date
	plan             atomic.Pointer[plan]
	nextAdjustment   atomic.Int64 // time of the next call of adjustBorrowing, in Unix nanoseconds

	mu        sync.Mutex // guards the fields below
	schemas   map[string]*flowcontrolv1.FlowSchema
	configs   map[string]*flowcontrolv1.PriorityLevelConfiguration
	levels    map[string]*level
	quiescing []*level // levels whose objects are deleted and which still have requests
}

// New returns a Controller over the state that head returns.
func New(c Config, head func() *storage.Snapshot, clock clock.WithTicker) *Controller {
	x := &Controller{
		Config: c, clock: clock, dropped: utilflowcontrol.NewDroppedRequestsTracker(), metrics: newMetrics(),
		schemas: map[string]*flowcontrolv1.FlowSchema{},
		configs: map[string]*flowcontrolv1.PriorityLevelConfiguration{},
		levels:  map[string]*level{},
	}
	for i, limit := range [...]int{c.MaxReads, c.MaxWrites} {
		if c.Disabled && limit > 0 {
			x.inflight[i] = &flow{level: &level{limit: limit}}
		}
	}
	x.Head, x.Advance = head, x.advance
	x.rebuild(clock.Now())
	return x
}

// Seat is the seat of a request in execution. The zero value is not a seat.
type Seat struct {
	flow  *flow
	queue *queue // the queue in which the request waited; nil if it did not wait
	index int    // in level.running
	taken time.Time
	held  bool
}

// Take blocks until a request that arrived at now has a seat. The caller must release the seat. Take returns false if
// the request is rejected.
func (x *Controller) Take(ctx context.Context, a *access.Attributes, now time.Time) (Seat, bool) {
	f := x.classify(a, now)
	if f == nil {
		return Seat{}, true
	}
	s, w, reason := f.level.admit(f, a, now)
	if w != nil {
		reason = x.wait(ctx, &s, w, now)
	}
	if s.held = reason == ""; s.held {
		return s, true
	}
	if x.Disabled {
		return Seat{}, slices.Contains(a.User.GetGroups(),
			user.SystemPrivilegedGroup) // always executed, as in upstream
	}
	x.metrics.rejected.WithLabelValues(f.level.name, f.schema, reason).Inc()
	x.dropped.RecordDroppedRequest(f.level.name)
	return s, false
}

// wait blocks until a queued request has a seat, for at most a quarter of the request's timeout, as in upstream. If
// the request gets no seat, wait returns the reason that the metric of rejected requests reports.
func (x *Controller) wait(ctx context.Context, s *Seat, w *waiter, now time.Time) (reason string) {
	timeout := x.RequestTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, deadline.Sub(now))
	}
	timer := x.clock.NewTimer(min(timeout/4, time.Minute))
	defer timer.Stop()
	adjust := x.clock.NewTicker(adjustmentPeriod)
	defer adjust.Stop()
	for waiting := true; waiting; {
		select {
		case <-adjust.C():
			x.adjustWhenDue(x.clock.Now())
			continue
		case <-w.ready:
		case <-timer.C():
		case <-ctx.Done():
		}
		waiting = false
	}
	execute := "true"
	if s.taken = x.clock.Now(); !s.flow.level.finishWait(w, s, s.taken) {
		execute, reason = "false", "time-out"
	}
	x.metrics.waited.WithLabelValues(s.flow.level.name, s.flow.schema, execute).Observe(s.taken.Sub(now).Seconds())
	return reason
}

// RetryAfter returns the number of seconds after which a client may retry a rejected request.
func (x *Controller) RetryAfter(s *Seat) int64 {
	if s.flow == nil {
		return 1
	}
	return x.dropped.GetRetryAfter(s.flow.level.name)
}

// Matched returns the values of the response headers: the UIDs of the FlowSchema and of the PriorityLevelConfiguration.
// The slices are shared; callers must not modify them.
func (s *Seat) Matched() (schema, level []string) {
	if s.flow == nil {
		return nil, nil
	}
	return s.flow.schemaUID, s.flow.levelUID
}

// Held reports whether the request has a seat.
func (s *Seat) Held() bool { return s.held }

// Release passes the seat to the next request. It does nothing if the request has no seat.
func (s *Seat) Release(now func() time.Time) {
	if s.held {
		s.held = false
		s.flow.level.release(s, now())
	}
}

// classify returns the flow of a request, or nil if the request needs no seat.
func (x *Controller) classify(a *access.Attributes, now time.Time) *flow {
	if x.Disabled {
		if a.IsReadOnly() {
			return x.inflight[0]
		}
		return x.inflight[1]
	}
	x.Refresh()
	x.adjustWhenDue(now)
	return x.plan.Load().match(a)
}

// adjustWhenDue calls adjustBorrowing if an adjustmentPeriod has passed since the last call. It is called for new and
// waiting requests, because only they need an adjustment.
func (x *Controller) adjustWhenDue(now time.Time) {
	if now.UnixNano() < x.nextAdjustment.Load() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if now.UnixNano() >= x.nextAdjustment.Load() {
		x.adjustBorrowing(now)
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

// replace updates a map of objects by storage key from seen to head. It reports whether an object has changed.
func replace[T any](all map[string]*T, head, seen *storage.Snapshot, prefix string) (changed bool) {
	for oldRec, newRec := range head.Since(seen, prefix) {
		changed = true
		if newRec == nil {
			delete(all, oldRec.Key)
			continue
		}
		object := new(T)
		if err := kjson.UnmarshalCaseSensitivePreserveInts(newRec.Value, object); err != nil {
			delete(all, newRec.Key) // an undecodable object is ignored
			continue
		}
		all[newRec.Key] = object
	}
	return changed
}
