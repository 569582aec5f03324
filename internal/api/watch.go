package api

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"github.com/trellis-k8s/trellis/internal/api/gzipped"
	"github.com/trellis-k8s/trellis/internal/engine"
)

const (
	// A watch that names no end lasts between minWatch and twice that, upstream's default.
	minWatch = 30 * time.Minute
	// bookmarkEvery is about how often a client hears how far it has come.
	bookmarkEvery = 60 * time.Second
	// rearm is how often the deadline of a stream's writes is looked after.
	rearm = 15 * time.Second
)

// watch streams the changes of a collection.
func (q *request) watch() error {
	if q.r.Method != http.MethodGet { // what a path below /watch/ would still allow
		return q.unsupported()
	}
	if err := q.negotiate(); err != nil {
		return err
	}
	o, err := q.listOptions()
	if err != nil {
		return err
	}
	if q.watchesComputed() {
		return apierrors.NewMethodNotSupported(q.v.GroupResource(), q.verb)
	}
	if !q.media.streams {
		return negotiation.NewNotAcceptableError(mediaTypes(q.server.offers, true))
	}
	events, err := q.newEvents()
	if err != nil {
		return err
	}
	if q.r.ProtoMajor == 1 { // where the end of a client is not seen before the end of its body
		if _, err := q.body(); err != nil {
			return err
		}
	}
	if q.slot == nil {
		q.slot = q.newSlot() // for what the watch sends later
	}
	if o.ResourceVersion == "" || o.ResourceVersion == "0" || o.SendInitialEvents != nil && *o.SendInitialEvents { // it begins with a list
		if err := q.takeSlotForList(o); err != nil {
			return err
		}
	}
	w, err := q.server.engine.Watch(q.slot.Context(q.r.Context()), q.target(), o.engine())
	if err != nil {
		return err
	}
	defer w.Close()
	lasts := minWatch + rand.N(minWatch)
	if o.TimeoutSeconds != nil && *o.TimeoutSeconds > 0 {
		lasts = time.Duration(min(*o.TimeoutSeconds, int64(24*365*time.Hour/time.Second))) * time.Second
	}
	var out sink
	if websocket.IsWebSocketUpgrade(q.r) {
		if out, err = q.upgrade(); err != nil {
			return nil // the upgrader has answered
		}
	} else {
		streamsList := o.SendInitialEvents != nil && *o.SendInitialEvents && o.AllowWatchBookmarks
		out = q.openStream(streamsList && gzipped.Accepted(q.r))
	}
	defer out.close()
	q.auditStart()
	sent, done := q.server.metrics.watching(q)
	defer done()
	watches, leave := q.server.watchCounts.add(q.v.Definition)
	defer leave()
	s := &stream{request: q, source: w, events: events, out: out, counter: sent, watches: watches}
	s.run(lasts)
	return nil
}

// sink is where a watch stream goes to.
type sink interface {
	// send writes frames, which end at the given offsets, and flushes them.
	send(frames []byte, ends []int) error
	// whenGone has f called when the client has left, where the request's context does not say so.
	whenGone(f func())
	// tend is called now and then.
	tend(now time.Time)
	close()
}

// stream moves events from a watch to its client. Everything that is ready goes out in one write.
type stream struct {
	*request
	source  *engine.Watch
	events  *events
	out     sink
	counter prometheus.Counter // of what is sent
	watches *atomic.Int64      // how many watch the same kind

	taken  []engine.WatchEvent
	buf    []byte
	frames []int // where those in buf end
	sent   time.Time

	ends, marks, tends time.Time // when the stream, the next bookmark, the next look at it is due
}

// run ends when either side does, the time is up, or the server goes away. Each
// channel that is waited for costs every event of every stream, so there are few.
func (s *stream) run(lasts time.Duration) {
	ctx, cancel := context.WithCancel(s.r.Context())
	defer cancel()
	defer context.AfterFunc(s.server.serving, cancel)()
	s.out.whenGone(cancel)
	now := time.Now()
	s.ends, s.marks, s.tends = now.Add(lasts), nextBookmark(now), now.Add(rearm)
	timer := time.NewTimer(s.rest(now))
	defer timer.Stop()
	for s.forward() {
		s.seat.Release(time.Now) // what there was at the beginning is on its way
		select {
		case <-s.source.Ready():
			if !s.gather(ctx.Done()) {
				return
			}
		case <-s.source.Ended(): // the next Take says so
		case now := <-timer.C:
			if !s.due(now) {
				return
			}
			timer.Reset(s.rest(now))
		case <-ctx.Done():
			return
		}
	}
}

func nextBookmark(now time.Time) time.Time {
	return now.Add(bookmarkEvery - rand.N(bookmarkEvery/10))
}

// rest is how long nothing is due.
func (s *stream) rest(now time.Time) time.Duration {
	next := s.ends
	for _, t := range []time.Time{s.marks, s.tends} {
		if t.Before(next) {
			next = t
		}
	}
	return max(next.Sub(now), 0)
}

// due does what the time has come for; false where that is the end.
func (s *stream) due(now time.Time) bool {
	if !now.Before(s.ends) {
		return false
	}
	if !now.Before(s.tends) {
		s.tends = now.Add(rearm)
		s.out.tend(now)
	}
	if now.Before(s.marks) {
		return true
	}
	s.marks = nextBookmark(now)
	b, ok := s.source.Bookmark()
	return !ok || s.add(b) && s.flush()
}

// gather waits a moment for more where events come in a burst.
func (s *stream) gather(done <-chan struct{}) bool {
	wait := patience(s.watches.Load()) - time.Since(s.sent)
	if wait <= 0 {
		return true
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-done:
		return false
	}
}

// forward sends all that is ready; false where the stream is over.
func (s *stream) forward() bool {
	defer s.slot.Release()
	for {
		var err error
		s.taken, err = s.source.Take(s.taken[:0])
		for i := range s.taken {
			if !s.add(s.taken[i]) {
				return false
			}
		}
		clear(s.taken)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				s.fault(err)
			}
			s.flush()
			return false
		}
		if len(s.taken) == 0 {
			return s.flush()
		}
	}
}

// add encodes an event. It sends all encoded events once they have the size of a chunk; a stream with more than that to send takes a slot,
// until it has sent all.
func (s *stream) add(e engine.WatchEvent) bool {
	buf, err := s.events.append(s.buf, e)
	if err != nil {
		s.fault(err)
		s.flush()
		return false
	}
	s.buf, s.frames = buf, append(s.frames, len(buf))
	return len(buf) < chunk || s.flush() && s.takeSlot(0) == nil
}

// fault tells the client why the stream ends.
func (s *stream) fault(err error) {
	if buf, err := s.events.appendError(s.buf, statusOf(err)); err == nil {
		s.buf, s.frames = buf, append(s.frames, len(buf))
	}
}

func (s *stream) flush() bool {
	if len(s.buf) == 0 {
		return true
	}
	resume := s.slot.PauseAfter(s.r.Context(), slowWrite)
	err := s.out.send(s.buf, s.frames)
	resume()
	s.counter.Add(float64(len(s.frames)))
	s.size += len(s.buf)
	s.buf, s.frames, s.sent = s.buf[:0], s.frames[:0], time.Now()
	if cap(s.buf) > 2*chunk {
		s.buf = nil
	}
	return err == nil
}

// httpStream is a response that has no end yet.
type httpStream struct {
	w          http.ResponseWriter
	c          *http.ResponseController
	compressed bool
	armed      time.Time // when the deadline of writes was set; zero: there is none
}

// openStream answers the request and leaves the response open. kube-apiserver compresses watches that begin with a list (KEP-3157).
func (q *request) openStream(compressed bool) sink {
	media := q.media.media
	switch q.media.format {
	case formatProtobuf:
		media += ";stream=watch"
	case formatCBOR:
		media = mediaCBORSeq
	}
	q.w.Header().Set("Content-Type", media)
	if compressed {
		gzipped.Header(q.w.Header())
	}
	q.status = http.StatusOK
	q.w.WriteHeader(http.StatusOK)
	s := &httpStream{w: q.w, c: http.NewResponseController(q.w), compressed: compressed}
	_ = s.c.SetWriteDeadline(time.Time{}) // the server's is for responses with an end
	_ = s.c.Flush()                       // if the client has gone, the first write says so as well
	return s
}

func (s *httpStream) send(frames []byte, _ []int) error {
	if now := time.Now(); now.Sub(s.armed) > rearm {
		s.armed = now
		_ = s.c.SetWriteDeadline(now.Add(slowClient)) // the loopback has none
	}
	if err := s.write(frames); err != nil {
		return err
	}
	return s.c.Flush()
}

// write writes frames, compressed by themselves: an idle stream keeps no state of the compression.
func (s *httpStream) write(frames []byte) error {
	if !s.compressed {
		_, err := s.w.Write(frames)
		return err
	}
	z := gzipped.NewWriter(s.w)
	_, err := z.Write(frames)
	if err == nil {
		err = z.Flush() // the client reads the frames before it looks for the next ones
	}
	return errors.Join(err, z.Close())
}

func (s *httpStream) whenGone(func()) {}

// tend takes the deadline away from a stream that has nothing to write, which would end it.
func (s *httpStream) tend(now time.Time) {
	if !s.armed.IsZero() && now.Sub(s.armed) > rearm {
		s.armed = time.Time{}
		_ = s.c.SetWriteDeadline(time.Time{})
	}
}

func (s *httpStream) close() { _ = s.c.SetWriteDeadline(time.Time{}) }
