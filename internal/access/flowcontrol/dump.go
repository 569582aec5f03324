package flowcontrol

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// dumps holds the columns of each dump, and a function that returns the rows of a level. Names and columns are
// upstream's.
var dumps = map[string]struct {
	columns string
	rows    func(l *level, details bool) [][]any
}{
	"dump_priority_levels": {"PriorityLevelName ActiveQueues IsIdle IsQuiescing WaitingRequests ExecutingRequests" +
		" DispatchedRequests RejectedRequests TimedoutRequests CancelledRequests", (*level).dump},
	"dump_queues": {"PriorityLevelName Index PendingRequests ExecutingRequests SeatsInUse NextDispatchR" +
		" InitialSeatsSum MaxSeatsSum TotalWorkSum", (*level).dumpQueues},
	"dump_requests": {"PriorityLevelName FlowSchemaName QueueIndex RequestIndexInQueue FlowDistingsher ArriveTime" +
		" InitialSeats FinalSeats AdditionalLatency StartTime", (*level).dumpRequests},
}

// details are the additional columns of dump_requests.
const details = " UserName Verb APIPath Namespace Name APIVersion Resource SubResource"

// Dump returns the handler of the dump at /debug/api_priority_and_fairness/ followed by name. It returns nil if
// upstream has no such dump.
func (x *Controller) Dump(name string) http.HandlerFunc {
	dump, found := dumps[name]
	if !found || x.Disabled {
		return nil
	}
	return func(w http.ResponseWriter, r *http.Request) {
		columns, detailed := dump.columns, name == "dump_requests" && r.URL.Query().Get("includeRequestDetails") != ""
		if detailed {
			columns += details
		}
		var out bytes.Buffer
		table := tabwriter.NewWriter(&out, 8, 0, 1, ' ', 0)
		fmt.Fprintln(table, strings.ReplaceAll(columns, " ", ",\t"))
		for _, l := range x.allLevels() {
			l.mu.Lock()
			rows := dump.rows(l, detailed)
			l.mu.Unlock()
			for _, row := range rows {
				fmt.Fprintf(table, strings.Repeat(",\t%v", len(row))[2:]+"\n", row...)
			}
		}
		_ = table.Flush() // writing to memory never fails
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write(out.Bytes()) // an error means that the client has disconnected
	}
}

// allLevels returns the levels sorted by name, followed by the quiescing levels.
func (x *Controller) allLevels() []*level {
	x.Refresh()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.quiesce(nil)
	all := slices.SortedFunc(maps.Values(x.levels), func(a, b *level) int { return strings.Compare(a.name, b.name) })
	return append(all, x.quiescing...)
}

// quiesce adds a level whose object is deleted to the quiescing levels. It then removes all quiescing levels that have
// no requests. If deleted is nil, it adds no level.
func (x *Controller) quiesce(deleted *level) {
	if deleted != nil {
		deleted.mu.Lock()
		deleted.quiescing = true
		deleted.mu.Unlock()
		x.quiescing = append(x.quiescing, deleted)
	}
	x.quiescing = slices.DeleteFunc(x.quiescing, func(l *level) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.executing+l.queued == 0
	})
}

func (l *level) dump(bool) [][]any {
	active := 0
	for _, q := range l.queues {
		if len(q.waiters) > 0 {
			active++
		}
	}
	return [][]any{{
		l.name, active, l.executing+l.queued == 0, l.quiescing,
		l.queued, l.executing, l.dispatched, l.rejected, 0, l.canceled,
	}}
}

func (l *level) dumpQueues(bool) (rows [][]any) {
	for i, q := range l.queues {
		n := len(q.waiters)
		rows = append(rows, []any{
			l.name, i, n, q.executing, q.executing, seatSeconds(q.nextStart), n, n,
			seatSeconds(float64(n) * workEstimate),
		})
	}
	return rows
}

func seatSeconds(s float64) string { return fmt.Sprintf("%.8fss", s) }

func (l *level) dumpRequests(detailed bool) (rows [][]any) {
	for i, q := range l.queues {
		for k, w := range q.waiters {
			rows = append(rows, l.row(&w.holder, i, k, detailed))
		}
	}
	executing := slices.DeleteFunc(slices.Clone(l.running), func(h holder) bool { return h.flow == nil })
	slices.SortStableFunc(executing, func(a, b holder) int {
		return cmp.Or(slices.Index(l.queues, a.queue)-slices.Index(l.queues, b.queue), a.arrived.Compare(b.arrived))
	})
	for i := range executing {
		rows = append(rows, l.row(&executing[i], slices.Index(l.queues, executing[i].queue), -1, detailed))
	}
	return rows
}

// row returns the cells of a request. queue is the index of the request's queue, and position the request's position
// in it. -1 means that the request has none.
func (l *level) row(h *holder, queue, position int, detailed bool) []any {
	a, flow := h.request, ""
	switch h.flow.distinguisher {
	case flowcontrolv1.FlowDistinguisherMethodByUserType:
		flow = a.User.GetName()
	case flowcontrolv1.FlowDistinguisherMethodByNamespaceType:
		flow = a.Namespace
	}
	cells := []any{
		l.name, h.flow.schema, queue, position, flow, stamp(h.arrived), 1, 0, time.Duration(0), stamp(h.started),
	}
	if !detailed {
		return cells
	}
	version := schema.GroupVersion{Group: a.Group, Version: a.Version}
	return append(cells, a.User.GetName(), a.Verb, a.Path, a.Namespace, a.Name, version, a.Plural, a.Subresource)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
