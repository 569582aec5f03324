package handlers

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
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/api/gzipped"
	"github.com/trellis-k8s/trellis/internal/api/metrics"
	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/engine/read"
)

const (
	// A watch without timeoutSeconds lasts between minWatch and twice minWatch. The value is upstream's.
	minWatch = 30 * time.Minute
	// bookmarkEvery is the approximate interval of bookmarks.
	bookmarkEvery = 60 * time.Second
	// deadlineInterval is the interval in which the write deadline of a stream is updated.
	deadlineInterval = 15 * time.Second
)

// watch streams the changes of a collection.
func (q call) watch() error {
	o, err := q.listOptions()
	if err != nil {
		return err
	}
	if q.WatchesComputed() {
		return apierrors.NewMethodNotSupported(q.Kind.GroupResource(), q.Verb)
	}
	if !q.Media.Streams {
		return q.Negotiator.NotStreamable()
	}
	t, err := q.NewTable()
	if err != nil {
		return err
	}
	if q.R.ProtoMajor == 1 { // net/http detects a disconnected client only after it has read the body
		if _, err := q.readBody(); err != nil {
			return err
		}
	}
	if q.Slot == nil {
		q.Slot = q.NewSlot() // for large batches of events
	}
	beginsWithList := o.ResourceVersion == "" || o.ResourceVersion == "0" ||
		o.SendInitialEvents != nil && *o.SendInitialEvents
	if beginsWithList {
		if err := q.takeSlotForList(o); err != nil {
			return err
		}
	}
	w, err := q.Engine.Watch(q.Slot.Context(q.R.Context()), q.Target(), o.engine())
	if err != nil {
		return err
	}
	defer w.Close()
	duration := minWatch + rand.N(minWatch)
	if o.TimeoutSeconds != nil && *o.TimeoutSeconds > 0 {
		duration = time.Duration(min(*o.TimeoutSeconds, int64(24*365*time.Hour/time.Second))) * time.Second
	}
	q.OpenFence(w.Err()) // such a watch has no events
	var out sink
	if websocket.IsWebSocketUpgrade(q.R) {
		if out, err = q.upgrade(); err != nil {
			return nil // the upgrader has written an error
		}
	} else {
		streamsList := o.SendInitialEvents != nil && *o.SendInitialEvents && o.AllowWatchBookmarks
		out = q.openStream(streamsList && gzipped.Accepted(q.R))
	}
	defer out.close()
	q.AuditStart()
	sent, done := q.Metrics.CountWatch(q.Request)
	defer done()
	watches, remove := q.Metrics.WatchCounts.Add(q.Kind.Definition)
	defer remove()
	s := &stream{call: q, source: w, events: encoding.NewEvents(&q.Media, t), out: out, counter: sent, watches: watches}
	s.run(duration)
	return nil
}

// sink is the destination of a watch stream.
type sink interface {
	// send writes and flushes frames. ends holds the offset at which each frame ends.
	send(frames []byte, ends []int) error
	// onDisconnect calls f when the client disconnects. It does nothing if a disconnection cancels the request's
	// context.
	onDisconnect(f func())
	// updateDeadline is called at intervals and may change the write deadline.
	updateDeadline(now time.Time)
	close()
}

// stream copies events from a watch to its client. It writes all available events at once.
type stream struct {
	call
	source  *read.Watch
	events  *encoding.Events
	out     sink
	counter prometheus.Counter // counts the events that are sent
	watches *atomic.Int64      // number of watches of the same kind

	batch     []read.WatchEvent
	buf       []byte
	frames    []int // offsets in buf at which frames end
	lastWrite time.Time

	// The times at which the stream ends, the next bookmark is sent and the write deadline is updated.
	endTime, bookmarkTime, updateTime time.Time
}

// run copies events until the watch ends, the client disconnects, the duration is over or the server shuts down.
// Its select has few channels, because each channel adds a cost to every event of every stream.
func (s *stream) run(duration time.Duration) {
	ctx, cancel := context.WithCancel(s.R.Context())
	defer cancel()
	defer context.AfterFunc(s.Serving, cancel)()
	s.out.onDisconnect(cancel)
	now := time.Now()
	s.endTime, s.bookmarkTime, s.updateTime = now.Add(duration), nextBookmark(now), now.Add(deadlineInterval)
	timer := time.NewTimer(s.untilNext(now))
	defer timer.Stop()
	for s.forward() {
		s.Seat.Release(time.Now) // the initial events have been sent
		select {
		case <-s.source.Ready():
			if !s.delayBurst(ctx.Done()) {
				return
			}
		case <-s.source.Ended(): // the next call of Take returns the error
		case now := <-timer.C:
			if !s.runDue(now) {
				return
			}
			timer.Reset(s.untilNext(now))
		case <-ctx.Done():
			return
		}
	}
}

func nextBookmark(now time.Time) time.Time {
	return now.Add(bookmarkEvery - rand.N(bookmarkEvery/10))
}

// untilNext returns the time until the stream ends, or until its next bookmark or deadline update.
func (s *stream) untilNext(now time.Time) time.Duration {
	next := s.endTime
	for _, t := range []time.Time{s.bookmarkTime, s.updateTime} {
		if t.Before(next) {
			next = t
		}
	}
	return max(next.Sub(now), 0)
}

// runDue sends a bookmark and updates the write deadline if they are due. It returns false if the stream must end.
func (s *stream) runDue(now time.Time) bool {
	if !now.Before(s.endTime) {
		return false
	}
	if !now.Before(s.updateTime) {
		s.updateTime = now.Add(deadlineInterval)
		s.out.updateDeadline(now)
	}
	if now.Before(s.bookmarkTime) {
		return true
	}
	s.bookmarkTime = nextBookmark(now)
	b, ok := s.source.Bookmark()
	return !ok || s.add(b) && s.flush()
}

// delayBurst delays the next write during a burst of events, so that one write sends several of them. It returns
// false if the stream must end.
func (s *stream) delayBurst(done <-chan struct{}) bool {
	wait := metrics.BurstDelay(s.watches.Load()) - time.Since(s.lastWrite)
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

// forward sends all available events. It returns false if the stream must end.
func (s *stream) forward() bool {
	defer s.Slot.Release()
	for {
		var err error
		s.batch, err = s.source.Take(s.batch[:0])
		for i := range s.batch {
			if !s.add(s.batch[i]) {
				return false
			}
		}
		clear(s.batch)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				s.flush() // the earlier events are not sent if the server is not valid
				s.OpenFence(err)
				s.addError(err)
			}
			s.flush()
			return false
		}
		if len(s.batch) == 0 {
			return s.flush()
		}
	}
}

// add encodes an event. When the encoded events exceed the size of a chunk, add sends them and takes a slot.
// forward releases the slot after it has sent all events.
func (s *stream) add(e read.WatchEvent) bool {
	buf, err := s.events.Append(s.buf, e)
	if err != nil {
		s.addError(err)
		s.flush()
		return false
	}
	s.buf, s.frames = buf, append(s.frames, len(buf))
	return len(buf) < chunk || s.flush() && s.TakeSlot(0) == nil
}

// addError adds the ERROR event that reports err to the client.
func (s *stream) addError(err error) {
	if buf, err := s.events.AppendError(s.buf, encoding.StatusOf(err)); err == nil {
		s.buf, s.frames = buf, append(s.frames, len(buf))
	}
}

func (s *stream) flush() bool {
	if len(s.buf) == 0 {
		return true
	}
	resume := s.Slot.PauseAfter(s.R.Context(), request.SlowWrite)
	err := s.out.send(s.buf, s.frames)
	resume()
	s.counter.Add(float64(len(s.frames)))
	s.Size += len(s.buf)
	s.buf, s.frames, s.lastWrite = s.buf[:0], s.frames[:0], time.Now()
	if cap(s.buf) > 2*chunk {
		s.buf = nil
	}
	return err == nil
}

// httpStream is a sink that writes to an HTTP response.
type httpStream struct {
	w           http.ResponseWriter
	c           *http.ResponseController
	compressed  bool
	deadlineSet time.Time // when the write deadline was set; zero if there is none
}

// openStream starts a response for a watch stream. kube-apiserver compresses watches that begin with a list
// (KEP-3157).
func (q call) openStream(compressed bool) sink {
	media := q.Media.MediaType
	switch q.Media.Format {
	case encoding.FormatProtobuf:
		media += ";stream=watch"
	case encoding.FormatCBOR:
		media = runtime.ContentTypeCBORSequence
	}
	q.W.Header().Set("Content-Type", media)
	if compressed {
		gzipped.Header(q.W.Header())
	}
	q.Status = http.StatusOK
	q.W.WriteHeader(http.StatusOK)
	s := &httpStream{w: q.W, c: http.NewResponseController(q.W), compressed: compressed}
	_ = s.c.SetWriteDeadline(time.Time{}) // the server's deadline applies only to other responses
	_ = s.c.Flush()                       // an error also occurs on the first write
	return s
}

func (s *httpStream) send(frames []byte, _ []int) error {
	if now := time.Now(); now.Sub(s.deadlineSet) > deadlineInterval {
		s.deadlineSet = now
		_ = s.c.SetWriteDeadline(now.Add(request.SlowClient)) // the loopback supports no deadline
	}
	if err := s.write(frames); err != nil {
		return err
	}
	return s.c.Flush()
}

// write writes frames. It compresses each batch separately, so that an idle stream holds no compressor.
func (s *httpStream) write(frames []byte) error {
	if !s.compressed {
		_, err := s.w.Write(frames)
		return err
	}
	z := gzipped.NewWriter(s.w)
	_, err := z.Write(frames)
	if err == nil {
		err = z.Flush() // the client decodes these frames before it reads more
	}
	return errors.Join(err, z.Close())
}

func (s *httpStream) onDisconnect(func()) {}

// updateDeadline removes the deadline of an idle stream, which would otherwise end the stream.
func (s *httpStream) updateDeadline(now time.Time) {
	if !s.deadlineSet.IsZero() && now.Sub(s.deadlineSet) > deadlineInterval {
		s.deadlineSet = time.Time{}
		_ = s.c.SetWriteDeadline(time.Time{})
	}
}

func (s *httpStream) close() { _ = s.c.SetWriteDeadline(time.Time{}) }
