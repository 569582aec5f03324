package replicas_test

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// operation is one request for one key, as its client observed it. Values are unique. "" means that the key does not
// exist.
type operation struct {
	client   int
	replica  int
	verb     string // get, create, update, patch or delete
	key      string
	from     string // value that a get returned, or that an update or a delete requires
	to       string // value that a create, an update or a patch writes
	code     int    // of the answer; for writes, 0 or a code from 500 means that the outcome is unknown
	revision int64  // in the answer
	call     int64
	end      int64
}

func (o *operation) write() bool    { return o.verb != "get" }
func (o *operation) applied() bool  { return answer{code: o.code}.applied() }
func (o *operation) rejected() bool { return answer{code: o.code}.rejected() }

// event is a change of a key in the order of revisions.
type event struct {
	revision int64
	verb     string // ADDED, MODIFIED or DELETED
	key      string
	value    string // the last value if the key was deleted
}

// step is the model of one key. It reports whether an operation with a known outcome is possible in a state, and
// returns the state after it.
func step(state string, o operation) (possible bool, after string) {
	switch {
	case o.verb == "get":
		return state == o.from, state
	case o.applied():
		switch o.verb {
		case "create":
			return state == "", o.to
		case "patch":
			return state != "", o.to
		}
		return state == o.from, o.to // to is "" if the verb is delete
	case o.code == 404:
		return state == "", state
	case o.code == 409 && o.verb == "create":
		return state != "", state
	case o.code == 409 && o.verb != "patch":
		return state != o.from, state
	}
	return true, state
}

// history holds the operations of all clients and the watched events of one round.
type history struct {
	zero time.Time

	mu         sync.Mutex
	operations []operation
	seen       map[event]int64 // time at which the first watcher has received the event
}

func newHistory() *history { return &history{zero: time.Now(), seen: map[event]int64{}} }

func (h *history) now() int64 { return int64(time.Since(h.zero)) }

func (h *history) add(o operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, o)
}

func (h *history) see(e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.seen[e]; !ok {
		h.seen[e] = h.now()
	}
}

// round is the state at the beginning and at the end of a history.
type round struct {
	before, after map[string]string
	// pending holds writes of earlier rounds whose outcome is unknown. A paused member may still execute them.
	pending []operation
}

// check compares the operations with the events and the states. It returns the violations, and the writes whose
// outcome is still unknown.
func (h *history) check(r round) (violations []string, pending []operation) {
	events := slices.SortedFunc(maps.Keys(h.seen), func(a, b event) int { return int(a.revision - b.revision) })
	violations = checkStates(events, r.before, r.after)
	written, deleted := map[string]event{}, map[string]event{}
	for _, e := range events {
		if e.verb == "DELETED" {
			deleted[e.value] = e
		} else {
			written[e.value] = e
		}
	}
	all := slices.Concat(r.pending, h.operations)
	invoked, deletes := map[string]bool{}, map[string]int{}
	for _, o := range all {
		invoked[o.to] = true
		if o.verb == "delete" && o.applied() {
			deletes[o.from]++
		}
	}
	for value := range written {
		if !invoked[value] {
			violations = append(violations, fmt.Sprintf("no client has written this: %+v", written[value]))
		}
	}
	var certain []operation
	for _, o := range all {
		e, happened := written[o.to]
		if o.verb == "delete" {
			e, happened = deleted[o.from]
		}
		switch {
		case !o.write():
			if e, ok := written[o.from]; ok && e.revision != o.revision {
				violations = append(violations, fmt.Sprintf("%+v has another revision than in the watch: %+v", o, e))
			}
		case o.applied() && (!happened || o.revision != 0 && e.revision != o.revision):
			violations = append(violations, fmt.Sprintf("acknowledged, but the watch has %+v: %+v", e, o))
		case o.verb == "delete" && o.applied() && deletes[o.from] > 1:
			violations = append(violations, fmt.Sprintf("acknowledged %d times: %+v", deletes[o.from], o))
		case o.rejected() && happened && o.verb != "delete":
			violations = append(violations, fmt.Sprintf("rejected, but the watch has %+v: %+v", e, o))
		case o.applied() || o.rejected():
		case !happened:
			o.call = 0 // of the clock of the next round
			pending = append(pending, o)
			continue
		case deletes[o.from] > 0 && o.verb == "delete":
			continue // another delete has removed the value
		default:
			o.code, o.end = 200, h.seen[e]
			deletes[o.from]++
		}
		certain = append(certain, o)
	}
	return append(violations, linearize(certain, r.before)...), pending
}

// checkStates checks that the events are possible one after the other and lead from one state to the other.
func checkStates(events []event, before, after map[string]string) (violations []string) {
	state, last := maps.Clone(before), int64(0)
	for _, e := range events {
		old, exists := state[e.key]
		switch {
		case e.revision == last:
			violations = append(violations, fmt.Sprintf("two events have the revision of %+v", e))
		case exists == (e.verb == "ADDED"), e.verb == "DELETED" && old != e.value,
			e.verb == "MODIFIED" && old == e.value:
			violations = append(violations, fmt.Sprintf("%+v follows the value %q", e, old))
		}
		if last = e.revision; e.verb == "DELETED" {
			delete(state, e.key)
		} else {
			state[e.key] = e.value
		}
	}
	if !maps.Equal(state, after) {
		violations = append(violations, fmt.Sprintf("the events lead to %v, but the stored state is %v", state, after))
	}
	return violations
}

// linearize checks that the operations on each key are linearizable.
func linearize(all []operation, before map[string]string) (violations []string) {
	byKey := map[string][]porcupine.Operation{}
	for _, o := range all {
		byKey[o.key] = append(byKey[o.key],
			porcupine.Operation{ClientId: o.client, Input: o, Call: o.call, Return: o.end})
	}
	for key, operations := range byKey {
		model := porcupine.Model{
			Init: func() any { return before[key] },
			Step: func(state, input, _ any) (bool, any) { return step(state.(string), input.(operation)) },
		}
		result, info := porcupine.CheckOperationsVerbose(model, operations, time.Minute)
		if result != porcupine.Ok {
			violations = append(violations, fmt.Sprintf("%d operations on %s are not linearizable (%s): %s",
				len(operations), key, result, unexplained(operations, info)))
		}
	}
	return violations
}

// unexplained describes the end of the longest sequence of operations that is possible, and the operations that cannot
// follow it.
func unexplained(all []porcupine.Operation, info porcupine.LinearizationInfo) (text string) {
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, sequence := range partition {
			if len(sequence) > len(longest) {
				longest = sequence
			}
		}
	}
	included := map[operation]bool{}
	for _, o := range longest {
		included[o.Input.(operation)] = true
	}
	rest := slices.DeleteFunc(slices.Clone(all), func(o porcupine.Operation) bool {
		return included[o.Input.(operation)]
	})
	slices.SortFunc(rest, func(a, b porcupine.Operation) int { return int(a.Return - b.Return) })
	for _, o := range longest[max(0, len(longest)-5):] {
		text += fmt.Sprintf("\n  possible: %+v", o.Input)
	}
	for _, o := range rest[:min(5, len(rest))] {
		text += fmt.Sprintf("\n  impossible then: %+v", o.Input)
	}
	return text
}
