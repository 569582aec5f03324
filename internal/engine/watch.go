package engine

import (
	"context"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// initialBatch bounds the events of one Take of a watch's beginning.
const initialBatch = 500

// Watch is a running watch, used by one goroutine.
type Watch struct {
	*query
	ctx        context.Context // of the request: what is taken may have to be converted
	cursor     *storage.Cursor
	generation *schemaGeneration // of the CRD; nil for a built-in kind
	ready      chan struct{}     // ready for good: there are initial events, or an error, to take
	err        error             // to be given by Take

	initial       *storage.Snapshot // whose objects come first; nil when they have
	lastKey       string            // key of the initial object given last
	startRevision int64             // events up to here are not for this watch
	markEnd       bool              // the end of the initial events is marked
	bookmarks     bool
	progress      int64 // all events up to here have been taken
	lastSent      int64 // the revision that the client knows of
	events        []*storage.Event
}

// Watch starts a watch. An error here is answered as a response; one of Take as an ERROR event.
func (e *Engine) Watch(ctx context.Context, t Target, o ListOptions) (*Watch, error) {
	defaultWatchOptions(&o)
	if err := validateListOptions(&o, true); err != nil {
		return nil, err
	}
	revision, err := parseRevision(o.ResourceVersion)
	if err != nil {
		return nil, unknownError(err.Error())
	}
	w := &Watch{ctx: ctx, bookmarks: o.AllowWatchBookmarks}
	if c := t.Version.Definition.Custom; c != nil && c.Key != "" {
		if t.Version, w.generation, err = e.schemaGenerationOf(ctx, t.Version); err != nil {
			return nil, err
		}
	}
	if w.query, err = e.newQuery(t, &o); err != nil {
		w.Close()
		return nil, err
	}
	err = storageError(w.start(ctx, e, revision, &o))
	if apierrors.IsServiceUnavailable(err) {
		w.Close()
		return nil, err
	}
	if err != nil {
		w.fail(err)
	}
	return w, nil
}

// defaultWatchOptions makes the older way to ask for initial events the newer one.
func defaultWatchOptions(o *ListOptions) {
	in := internalversion.ListOptions{
		Watch: true, ResourceVersion: o.ResourceVersion,
		ResourceVersionMatch: o.ResourceVersionMatch, SendInitialEvents: o.SendInitialEvents,
	}
	internalversion.SetListOptionsDefaults(&in, true)
	o.ResourceVersionMatch, o.SendInitialEvents = in.ResourceVersionMatch, in.SendInitialEvents
}

// start opens the cursor where the watch begins.
func (w *Watch) start(ctx context.Context, e *Engine, revision int64, o *ListOptions) error {
	head := e.Store.Head()
	var err error
	if revision == 0 && o.ResourceVersion == "" {
		if head, err = e.newest(ctx); err != nil {
			return err
		}
	}
	switch {
	case o.SendInitialEvents != nil && *o.SendInitialEvents:
		if revision > head.Revision() {
			if head, err = e.waitForRevision(ctx, revision); err != nil {
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
	if revision > head.Revision() { // from the future: the changes until then are left out
		revision = head.Revision()
	}
	w.progress, w.lastSent = revision, w.startRevision
	w.cursor, err = e.Store.Watch(ctx, w.prefix, revision)
	var compacted *storage.CompactedError
	if errors.As(err, &compacted) {
		return expired(compacted)
	}
	return err
}

// expired is the 410 for a watch from a revision that has left the history.
func expired(c *storage.CompactedError) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", c.Requested, c.Oldest))
}

func (w *Watch) fail(err error) {
	w.initial, w.err = nil, err
	w.signalReady()
}

// signalReady makes the watch ready for good.
func (w *Watch) signalReady() {
	if w.ready == nil {
		w.ready = make(chan struct{})
		close(w.ready)
	}
}

// Ready receives when Take may have something new.
func (w *Watch) Ready() <-chan struct{} {
	if w.initial != nil || w.err != nil {
		return w.ready
	}
	return w.cursor.Ready()
}

// Ended is closed when the kind has changed under the watch, so that Take gives io.EOF. It is nil
// for a built-in kind.
func (w *Watch) Ended() <-chan struct{} {
	if w.generation == nil {
		return nil
	}
	return w.generation.changed
}

// Take returns what is ready, without blocking: initial events first, a bounded number a call; when it
// returns some, call it again after writing them. An error is final: a StatusError (410), or io.EOF for an
// ordinary end: the CRD has changed shape, the client is too slow, the server shuts down.
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
	if w.reader.remote {
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

// takeInitial gives the next of the objects that were there when the watch began.
func (w *Watch) takeInitial(buf []WatchEvent) ([]WatchEvent, error) {
	snap, seen := w.initial, 0
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
		seen = len(recs)
		buf, w.err = w.addInitial(buf, recs)
	}
	if w.err != nil || seen == initialBatch {
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
	recs, err := w.reader.preconvert(w.ctx, recs)
	if err != nil {
		return buf, err
	}
	for _, rec := range recs {
		if !w.matches(rec) {
			continue
		}
		o, err := w.reader.read(w.ctx, rec)
		if err != nil {
			return buf, err
		}
		buf = append(buf, WatchEvent{Type: "ADDED", Object: o})
	}
	return buf, nil
}

// preconvertEvents has what events will need converted in one go. Where that fails judge will meet the error in its place.
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
		_, _ = w.reader.preconvert(w.ctx, recs)
	}
}

// preconvertEvent is ev's two records at the version of the watch, as far as they are needed.
func (w *Watch) preconvertEvent(ev *storage.Event) (rec, previous *storage.Record, err error) {
	rec, previous = ev.Record, ev.Previous
	if !w.reader.remote {
		return rec, previous, nil
	}
	pair := []*storage.Record{rec, nil}
	if rec == nil || !w.empty() {
		pair[1] = previous
	}
	if pair, err = w.reader.preconvert(w.ctx, pair); err != nil {
		return nil, nil, err
	}
	if pair[1] != nil {
		previous = pair[1]
	}
	return pair[0], previous, nil
}

// appendEvent appends what the watch sees of a change: an object that comes to match is added, one
// that no longer matches is deleted, as it was, at the revision of the change.
func (w *Watch) appendEvent(buf []WatchEvent, ev *storage.Event) ([]WatchEvent, error) {
	if ev.Revision <= w.startRevision || w.single && ev.Key != w.prefix {
		return buf, nil
	}
	rec, previous, err := w.preconvertEvent(ev)
	if err != nil {
		return buf, err
	}
	now := rec != nil && w.matches(rec)
	before := previous != nil && w.matches(previous)
	kind := "MODIFIED"
	switch {
	case !now && !before:
		return buf, nil
	case !before:
		kind = "ADDED"
	case !now:
		kind, rec = "DELETED", previous
	}
	o, err := w.reader.read(w.ctx, rec)
	if err != nil {
		return buf, err
	}
	o.Revision, w.lastSent = ev.Revision, ev.Revision
	return append(buf, WatchEvent{Type: kind, Object: o}), nil
}

// Bookmark returns a BOOKMARK event for all that Take has returned, if bookmarks were asked for
// and there is progress to report.
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
		Object:           Object{Version: w.reader.version, Revision: revision},
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
