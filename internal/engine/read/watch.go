package read

import (
	"context"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// initialBatch is the maximum number of initial objects that one call of Take reads.
const initialBatch = 500

// WatchEvent is one event of a watch.
type WatchEvent struct {
	Type   string        // "ADDED", "MODIFIED", "DELETED", "BOOKMARK"
	Object record.Object // only Revision and Version are set in a BOOKMARK
	// InitialEventsEnd marks the bookmark that ends the initial events.
	InitialEventsEnd bool
}

// Watch is a running watch. Only one goroutine may use it.
type Watch struct {
	*query
	ctx        context.Context // context of the request, for conversions of events
	failed     func() error    // Failed of the store
	cursor     *storage.Cursor
	generation *schemaGeneration // schema generation of the CRD; nil for a built-in kind
	ready      chan struct{}     // closed when Take can return initial events or an error
	err        error             // the error that Take returns

	initial       *storage.Snapshot // snapshot of the initial events; nil after Take has returned all of them
	lastKey       string            // key of the last initial object that Take has returned
	startRevision int64             // events up to this revision are skipped
	markEnd       bool              // whether a bookmark follows the initial events
	bookmarks     bool
	progress      int64 // Take has returned all events up to this revision
	lastSent      int64 // the last revision sent to the client
	events        []*storage.Event
}

// Watch starts a watch. An error of Watch becomes an HTTP error response. An error of Take becomes an ERROR event.
func (r *Reader) Watch(ctx context.Context, t verb.Target, o ListOptions) (*Watch, error) {
	defaultWatchOptions(&o)
	if err := validateListOptions(&o, true); err != nil {
		return nil, err
	}
	revision, err := parseRevision(o.ResourceVersion)
	if err != nil {
		return nil, verb.Unknown(err)
	}
	w := &Watch{ctx: ctx, failed: r.Store.Failed, bookmarks: o.AllowWatchBookmarks}
	if crd, _ := t.Version.Definition.CRD(); crd != "" {
		if t.Version, w.generation, err = r.schemaGenerationOf(ctx, t.Version); err != nil {
			return nil, err
		}
	}
	if w.query, err = r.newQuery(t, &o); err != nil {
		w.Close()
		return nil, err
	}
	err = verb.Status(w.start(ctx, r, revision, &o))
	if apierrors.IsServiceUnavailable(err) {
		w.Close()
		return nil, err
	}
	if err != nil {
		w.fail(err)
	}
	return w, nil
}

// defaultWatchOptions sets sendInitialEvents if a request uses the legacy form of requesting initial events.
func defaultWatchOptions(o *ListOptions) {
	in := internalversion.ListOptions{
		Watch: true, ResourceVersion: o.ResourceVersion,
		ResourceVersionMatch: o.ResourceVersionMatch, SendInitialEvents: o.SendInitialEvents,
	}
	internalversion.SetListOptionsDefaults(&in, true)
	o.ResourceVersionMatch, o.SendInitialEvents = in.ResourceVersionMatch, in.SendInitialEvents
}

// start opens the cursor at the revision where the watch starts.
func (w *Watch) start(ctx context.Context, r *Reader, revision int64, o *ListOptions) error {
	head := r.Store.Head()
	var err error
	if revision == 0 && o.ResourceVersion == "" {
		if head, err = r.Newest(ctx); err != nil {
			return err
		}
	}
	switch {
	case o.SendInitialEvents != nil && *o.SendInitialEvents:
		if revision > head.Revision() {
			if head, err = r.waitForRevision(ctx, revision); err != nil {
				return err
			}
		}
		w.initial, w.markEnd = head, w.bookmarks
		revision = head.Revision()
		w.signalReady()
	case revision == 0:
		revision = head.Revision()
	}
	w.startRevision = revision
	if revision > head.Revision() { // the store has not reached the revision: changes up to it are skipped
		revision = head.Revision()
	}
	w.progress, w.lastSent = revision, w.startRevision
	w.cursor, err = r.Store.Watch(ctx, w.prefix, revision)
	var compacted *storage.CompactedError
	switch {
	case errors.As(err, &compacted):
		return expired(compacted)
	case errors.Is(err, storage.ErrFailed):
		return verb.ErrHistoryLost
	}
	return err
}

// expired returns the 410 for a watch from a revision that is no longer in the history.
func expired(c *storage.CompactedError) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", c.Requested, c.Oldest))
}

func (w *Watch) fail(err error) {
	w.initial, w.err = nil, err
	w.signalReady()
}

// Err returns the error that ends the watch, or nil.
func (w *Watch) Err() error { return w.err }

// signalReady closes the channel that Ready returns.
func (w *Watch) signalReady() {
	if w.ready == nil {
		w.ready = make(chan struct{})
		close(w.ready)
	}
}

// Ready returns a channel that receives when Take may have events or an error.
func (w *Watch) Ready() <-chan struct{} {
	if w.initial != nil || w.err != nil {
		return w.ready
	}
	return w.cursor.Ready()
}

// Ended returns a channel that is closed when the CRD changes. Take then returns io.EOF. The channel is nil for a
// built-in kind.
func (w *Watch) Ended() <-chan struct{} {
	if w.generation == nil {
		return nil
	}
	return w.generation.changed
}

// Take appends the available events to buf. It does not wait for new events. Initial events come first, in batches.
// If Take returns events, the caller must write them and then call Take again. An error is final.
//
// The error io.EOF means that the stream ends without an ERROR event, so that the client starts a new watch at the
// last revision that it has received. The reasons are a change of the CRD, a client that is too slow
// (storage.ErrLagging) and the end of the server. Any other error, such as a failed conversion or store, is sent to the
// client as an ERROR event.
func (w *Watch) Take(buf []WatchEvent) ([]WatchEvent, error) {
	if w.err != nil {
		return buf, w.err
	}
	select {
	case <-w.Ended():
		w.fail(io.EOF)
		return buf, w.err
	default:
	}
	if w.initial != nil {
		return w.takeInitial(buf)
	}
	before := len(buf)
	events, progress, err := w.cursor.Take(w.events[:0])
	if w.view.Remote {
		w.preconvertEvents(events)
	}
	for i, ev := range events {
		if buf, w.err = w.appendEvent(buf, ev); w.err != nil {
			break
		}
		events[i] = nil
	}
	w.events = events
	w.progress = max(progress, w.progress)
	if err != nil && w.err == nil {
		w.err = io.EOF
		if w.failed() != nil {
			w.err = verb.ErrHistoryLost
		}
	}
	if w.err == nil {
		return buf, nil
	}
	w.signalReady()
	if len(buf) > before {
		return buf, nil
	}
	return buf, w.err
}

// takeInitial appends the next initial events.
func (w *Watch) takeInitial(buf []WatchEvent) ([]WatchEvent, error) {
	snap, n := w.initial, 0
	if w.single {
		if rec := snap.Get(w.prefix); rec != nil {
			buf, w.err = w.addInitial(buf, []*storage.Record{rec})
		}
	} else {
		recs := make([]*storage.Record, 0, min(initialBatch, snap.Count(w.prefix, w.lastKey)))
		for rec := range snap.Walk(w.prefix, w.lastKey) {
			w.lastKey = rec.Key
			if recs = append(recs, rec); len(recs) == initialBatch {
				break
			}
		}
		n = len(recs)
		buf, w.err = w.addInitial(buf, recs)
	}
	if w.err != nil || n == initialBatch {
		return buf, w.err
	}
	w.initial = nil
	if w.markEnd {
		buf = append(buf, w.bookmark(snap.Revision(), true))
	}
	w.lastSent = snap.Revision()
	return buf, nil
}

func (w *Watch) addInitial(buf []WatchEvent, recs []*storage.Record) ([]WatchEvent, error) {
	recs, err := w.view.Preconvert(w.ctx, recs)
	if err != nil {
		return buf, err
	}
	for _, rec := range recs {
		if !w.matches(rec) {
			continue
		}
		o, err := w.view.Read(w.ctx, rec)
		if err != nil {
			return buf, err
		}
		buf = append(buf, WatchEvent{Type: "ADDED", Object: o})
	}
	return buf, nil
}

// preconvertEvents converts all objects that events need with one call of the webhook. It ignores errors, because
// appendEvent encounters the same errors again.
func (w *Watch) preconvertEvents(events []*storage.Event) {
	var recs []*storage.Record
	for _, ev := range events {
		if ev.Record != nil {
			recs = append(recs, ev.Record)
		}
		if ev.Previous != nil && (ev.Record == nil || !w.empty()) {
			recs = append(recs, ev.Previous)
		}
	}
	if len(recs) > 1 {
		_, _ = w.view.Preconvert(w.ctx, recs)
	}
}

// preconvertEvent returns the current and the previous record of ev at the version of the watch. A record that is
// not needed may be nil.
func (w *Watch) preconvertEvent(ev *storage.Event) (rec, previous *storage.Record, err error) {
	rec, previous = ev.Record, ev.Previous
	if !w.view.Remote {
		return rec, previous, nil
	}
	pair := []*storage.Record{rec, nil}
	if rec == nil || !w.empty() {
		pair[1] = previous
	}
	if pair, err = w.view.Preconvert(w.ctx, pair); err != nil {
		return nil, nil, err
	}
	if pair[1] != nil {
		previous = pair[1]
	}
	return pair[0], previous, nil
}

// appendEvent appends the watch event for a change, if the object matches the selector before or after the change.
// The event is ADDED if the object starts to match. It is DELETED if the object no longer matches. A DELETED event
// contains the previous state at the revision of the change.
func (w *Watch) appendEvent(buf []WatchEvent, ev *storage.Event) ([]WatchEvent, error) {
	if ev.Revision <= w.startRevision || w.single && ev.Key != w.prefix {
		return buf, nil
	}
	rec, previous, err := w.preconvertEvent(ev)
	if err != nil {
		return buf, err
	}
	matches := rec != nil && w.matches(rec)
	matched := previous != nil && w.matches(previous)
	kind := "MODIFIED"
	switch {
	case !matches && !matched:
		return buf, nil
	case !matched:
		kind = "ADDED"
	case !matches:
		kind, rec = "DELETED", previous
	}
	o, err := w.view.Read(w.ctx, rec)
	if err != nil {
		return buf, err
	}
	o.Revision, w.lastSent = ev.Revision, ev.Revision
	return append(buf, WatchEvent{Type: kind, Object: o}), nil
}

// Bookmark returns a BOOKMARK event with the revision that Take has reached. It returns false if the client has not
// requested bookmarks, or if the client already knows this revision.
func (w *Watch) Bookmark() (WatchEvent, bool) {
	if !w.bookmarks || w.initial != nil || w.err != nil || w.progress <= w.lastSent {
		return WatchEvent{}, false
	}
	w.lastSent = w.progress
	return w.bookmark(w.lastSent, false), true
}

func (w *Watch) bookmark(revision int64, end bool) WatchEvent {
	return WatchEvent{
		Type:             "BOOKMARK",
		Object:           record.Object{Version: w.view.Version, Revision: revision},
		InitialEventsEnd: end,
	}
}

// Close ends the watch.
func (w *Watch) Close() {
	if w.cursor != nil {
		w.cursor.Close()
	}
	if w.generation != nil {
		w.generation.release()
		w.generation = nil
	}
}
