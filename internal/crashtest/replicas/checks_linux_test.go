package replicas_test

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

// correctHistory is a history without violations: a creation, a read of it, an update whose outcome is unknown, and a
// deletion.
func correctHistory() (*history, round) {
	h := newHistory()
	h.operations = []operation{
		{verb: "create", key: "key-0", to: "a", code: 201, revision: 10, call: 1, end: 2},
		{verb: "get", key: "key-0", from: "a", code: 200, revision: 10, call: 3, end: 4},
		{verb: "update", key: "key-0", from: "a", to: "b", code: 504, call: 5, end: 6},
		{verb: "get", key: "key-0", from: "b", code: 200, revision: 11, call: 7, end: 8},
		{verb: "delete", key: "key-0", from: "b", code: 200, call: 9, end: 10},
		{verb: "get", key: "key-0", code: 404, call: 11, end: 12},
		{verb: "create", key: "key-1", to: "c", call: 1, end: 2}, // no response
	}
	h.seen = map[event]int64{
		{10, "ADDED", "key-0", "a"}:    2,
		{11, "MODIFIED", "key-0", "b"}: 6,
		{12, "DELETED", "key-0", "b"}:  10,
	}
	return h, round{before: map[string]string{}}
}

// TestHistoryChecks checks that the check of a history finds each kind of violation, and none in a correct history.
func TestHistoryChecks(t *testing.T) {
	created, updated, deleted := event{10, "ADDED", "key-0", "a"}, event{11, "MODIFIED", "key-0", "b"},
		event{12, "DELETED", "key-0", "b"}
	for name, c := range map[string]struct {
		change func(h *history, r *round)
		want   string // part of a violation; "" means none
	}{
		"correct": {func(*history, *round) {}, ""},
		"lost write": {func(h *history, _ *round) {
			h.operations = append(h.operations, operation{verb: "create", key: "key-2", to: "d", code: 201, revision: 13})
		}, "acknowledged, but the watch has"},
		"other revision": {func(h *history, _ *round) { h.operations[0].revision = 9 }, "acknowledged, but the watch has"},
		"read of another revision": {func(h *history, _ *round) { h.operations[1].revision = 9 },
			"has another revision than in the watch"},
		"rejected write": {func(h *history, _ *round) { h.operations[2].code = 409 }, "rejected, but the watch has"},
		"unknown writer": {func(h *history, _ *round) { h.operations = h.operations[1:] }, "no client has written this"},
		"stale read": {func(h *history, _ *round) {
			h.operations[3].from, h.operations[3].revision = "a", 10
		}, "not linearizable"},
		"false conflict": {func(h *history, _ *round) {
			h.operations = append(h.operations, operation{verb: "delete", key: "key-0", from: "b", code: 409, call: 8, end: 8})
		}, "not linearizable"},
		"two deletions": {func(h *history, _ *round) { h.operations = append(h.operations, h.operations[4]) },
			"acknowledged 2 times"},
		"lost event":       {func(h *history, _ *round) { delete(h.seen, updated) }, "follows the value"},
		"lost creation":    {func(h *history, _ *round) { delete(h.seen, created) }, "follows the value"},
		"dropped deletion": {func(h *history, _ *round) { delete(h.seen, deleted) }, "the events lead to"},
		"other state": {func(_ *history, r *round) { r.after = map[string]string{"key-0": "b"} },
			"the events lead to"},
	} {
		h, r := correctHistory()
		c.change(h, &r)
		violations, pending := h.check(r)
		text := strings.Join(violations, "\n")
		if c.want == "" && (text != "" || len(pending) != 1) {
			t.Errorf("%s: violations %s, pending %v", name, text, pending)
		}
		if !strings.Contains(text, c.want) {
			t.Errorf("%s: violations %q, want %q", name, text, c.want)
		}
	}
}

// TestWatchChecks checks that the checks of a watch find events that are missing, repeated or out of order, and a 410
// without a compaction.
func TestWatchChecks(t *testing.T) {
	all := []event{{10, "ADDED", "key-0", "a"}, {11, "MODIFIED", "key-0", "b"}, {14, "DELETED", "key-0", "b"}}
	send := func(w *watcher, verb string, revision int64) {
		e := watchEvent{Type: verb}
		e.Object.Metadata.Name, e.Object.Metadata.ResourceVersion = "key-0", fmt.Sprint(revision)
		e.Object.Data = map[string]string{"value": map[int64]string{10: "a", 11: "b", 14: "b"}[revision]}
		w.receive(&api{}, e)
	}
	for name, c := range map[string]struct {
		run  func(w *watcher)
		want string
	}{
		"correct": {func(w *watcher) {
			send(w, "ADDED", 10)
			send(w, "BOOKMARK", 10)
			send(w, "MODIFIED", 11)
			send(w, "BOOKMARK", 13)
			send(w, "DELETED", 14)
		}, ""},
		"gap": {func(w *watcher) {
			send(w, "ADDED", 10)
			send(w, "DELETED", 14)
		}, "instead of"},
		"end missing": {func(w *watcher) { send(w, "ADDED", 10) }, "lacks"},
		"repeated": {func(w *watcher) {
			send(w, "ADDED", 10)
			send(w, "ADDED", 10)
		}, "has reached revision 10"},
		"event below a bookmark": {func(w *watcher) {
			send(w, "ADDED", 10)
			send(w, "BOOKMARK", 12)
			send(w, "MODIFIED", 11)
		}, "has reached revision 12"},
		"410 without compaction": {func(w *watcher) {
			w.sections = []section{{after: 9, until: 9}, {after: 20, expired: 9}}
		}, "got 410"},
	} {
		tally := newTally()
		w := newWatcher(0, nil, newHistory(), tally, 9)
		c.run(w)
		text := strings.Join(append(tally.violations, w.check(all, 20, 5)...), "\n")
		if c.want == "" && text != "" || !strings.Contains(text, c.want) {
			t.Errorf("%s: violations %q, want %q", name, text, c.want)
		}
	}
}

// TestRegisterChecks checks that an answer from before a rule was changed is a violation if the request began after the
// change, and only then.
func TestRegisterChecks(t *testing.T) {
	second := int64(time.Second)
	for name, c := range map[string]struct {
		read registerRead
		ok   bool
	}{
		"before":           {registerRead{value: granted, call: 0, end: 4}, true},
		"during":           {registerRead{value: granted, call: 5, end: 7}, true},
		"old value after":  {registerRead{value: granted, call: 12, end: 13}, false},
		"new value after":  {registerRead{value: denied, call: 12, end: 13}, true},
		"unknown outcome":  {registerRead{value: granted, call: 22, end: 23}, true},
		"other value":      {registerRead{value: denied, other: true, call: 12, end: 13}, false},
		"not the old one":  {registerRead{value: granted, other: true, call: 12, end: 13}, true},
		"after a newer":    {registerRead{value: granted, call: 42, end: 43}, false},
		"at the same time": {registerRead{value: granted, call: 10, end: 13}, true},
	} {
		r := &register{writes: []registerWrite{
			{value: granted}, {value: denied, call: 6 * second, end: 10 * second},
			{value: granted, call: 20 * second, end: math.MaxInt64}, {value: denied, call: 30 * second, end: 40 * second},
		}}
		c.read.call, c.read.end = c.read.call*second, c.read.end*second
		r.reads = []registerRead{c.read}
		if violations, _ := r.check(); (len(violations) == 0) != c.ok {
			t.Errorf("%s: %v", name, violations)
		}
	}
}

// TestAnswers checks which answers prove that a write was executed, or was not.
func TestAnswers(t *testing.T) {
	for code, want := range map[int]string{
		0: "unknown", http.StatusOK: "applied", http.StatusCreated: "applied", http.StatusConflict: "rejected",
		http.StatusInternalServerError: "unknown", http.StatusServiceUnavailable: "unknown",
		http.StatusGatewayTimeout: "unknown",
	} {
		a, got := answer{code: code}, "unknown"
		if a.applied() {
			got = "applied"
		} else if a.rejected() {
			got = "rejected"
		}
		if got != want {
			t.Errorf("%d: %s, want %s", code, got, want)
		}
	}
}
