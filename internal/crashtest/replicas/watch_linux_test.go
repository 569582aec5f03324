package replicas_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// watcher is a client that watches the collection. If a watch ends, it continues on the next replica at the revision
// that it has reached.
type watcher struct {
	id      int
	apis    []*api // of all replicas
	history *history
	tally   *tally

	mu       sync.Mutex
	reached  int64     // revision of the last event or bookmark
	sections []section // the last one has no end yet
}

// section is a part of the history without gaps: all events with a revision in (after, until].
type section struct {
	after, until int64
	events       []event
	// expired is the revision from which another watch could not continue, because its history was compacted. 0 means
	// the start of the watcher.
	expired int64
}

// watchEvent is an event of the API.
type watchEvent struct {
	Type   string
	Object configMap
}

func newWatcher(id int, apis []*api, h *history, t *tally, from int64) *watcher {
	return &watcher{id: id, apis: apis, history: h, tally: t, reached: from, sections: []section{{after: from}}}
}

// run watches until ctx is done.
func (w *watcher) run(ctx context.Context) {
	for i := w.id; ctx.Err() == nil; i++ {
		if w.watch(ctx, w.apis[i%len(w.apis)]) && !w.relist(ctx) {
			return
		}
		wait(ctx, 20*time.Millisecond)
	}
}

// watch reads events until the watch ends. It reports whether the revision is no longer available.
func (w *watcher) watch(ctx context.Context, a *api) (expired bool) {
	path := fmt.Sprintf("%s?watch=1&allowWatchBookmarks=true&timeoutSeconds=%d&resourceVersion=%d",
		collection, 4+w.id*3, w.reached)
	resp, err := a.open(ctx, "GET", path, "", nil)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != 200 {
		return resp.StatusCode == 410
	}
	w.tally.count("watches", 1)
	decoder := json.NewDecoder(resp.Body)
	for {
		var e watchEvent
		if err := decoder.Decode(&e); err != nil {
			return false
		}
		if e.Type == "ERROR" {
			if e.Object.Code != 410 && e.Object.Code < 500 {
				w.tally.violation("watcher %d at revision %d of replica %d: %+v", w.id, w.reached, a.replica, e.Object)
			}
			return e.Object.Code == 410
		}
		w.receive(a, e)
	}
}

// receive checks the order of events, and records those of keys.
func (w *watcher) receive(a *api, e watchEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	revision := e.Object.revision()
	if revision < w.reached || revision == w.reached && e.Type != "BOOKMARK" {
		w.tally.violation("watcher %d has reached revision %d, and replica %d sends %s %s at revision %d", w.id,
			w.reached, a.replica, e.Type, e.Object.Metadata.Name, revision)
		return
	}
	w.reached = revision
	if e.Type == "BOOKMARK" {
		w.tally.count("bookmarks", 1)
		return
	}
	if strings.HasPrefix(e.Object.Metadata.Name, keyPrefix) {
		seen := event{revision: revision, verb: e.Type, key: e.Object.Metadata.Name, value: e.Object.value()}
		last := &w.sections[len(w.sections)-1]
		last.events = append(last.events, seen)
		w.history.see(seen)
	}
	w.tally.count("events", 1)
}

// relist begins a new section at the current revision.
func (w *watcher) relist(ctx context.Context) bool {
	for i := 0; ctx.Err() == nil; i++ {
		limited, cancel := context.WithTimeout(ctx, attemptTimeout)
		answer := w.apis[i%len(w.apis)].do(limited, "GET", collection+"?limit=1", "", nil)
		cancel()
		var all list
		if answer.applied() && answer.into(&all) == nil {
			revision, _ := strconv.ParseInt(all.Metadata.ResourceVersion, 10, 64)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.sections[len(w.sections)-1].until = w.reached
			w.sections = append(w.sections, section{after: revision, expired: w.reached})
			w.reached = revision
			w.tally.count("watches expired", 1)
			return true
		}
		wait(ctx, 50*time.Millisecond)
	}
	return false
}

// has reports whether the watcher has reached a revision.
func (w *watcher) has(revision int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reached < revision {
		return fmt.Errorf("watcher %d has reached revision %d, not %d", w.id, w.reached, revision)
	}
	return nil
}

// check compares the sections with all events that any watcher has received. compacted is the highest revision that
// was compacted.
func (w *watcher) check(all []event, until, compacted int64) (violations []string) {
	w.sections[len(w.sections)-1].until = until
	for _, s := range w.sections {
		if s.expired > 0 && s.expired >= compacted {
			violations = append(violations, fmt.Sprintf("watcher %d got 410 at revision %d, but only revisions before "+
				"%d were compacted", w.id, s.expired, compacted))
		}
		want := slices.DeleteFunc(slices.Clone(all), func(e event) bool {
			return e.revision <= s.after || e.revision > s.until
		})
		got := slices.DeleteFunc(slices.Clone(s.events), func(e event) bool { return e.revision > s.until })
		if !slices.Equal(got, want) {
			violations = append(violations, fmt.Sprintf("watcher %d received %d events in (%d, %d], want %d: %s", w.id,
				len(got), s.after, s.until, len(want), difference(got, want)))
		}
	}
	return violations
}

// difference describes the first difference of two lists of events.
func difference(got, want []event) string {
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return fmt.Sprintf("lacks %+v", want[i])
		case i >= len(want):
			return fmt.Sprintf("has %+v in addition", got[i])
		case got[i] != want[i]:
			return fmt.Sprintf("has %+v instead of %+v", got[i], want[i])
		}
	}
	return ""
}
