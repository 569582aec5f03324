package api

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
)

// countingWriter is a ResponseWriter that counts the events and the writes of a watch.
type countingWriter struct {
	discardWriter
	events *atomic.Int64
	writes *atomic.Int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	c.events.Add(int64(bytes.Count(p, []byte("\n"))))
	c.writes.Add(1)
	return len(p), nil
}

func (c *countingWriter) Flush() {}

// BenchmarkWatch delivers bursts of changes to 500 watchers. An operation is the delivery of one event to one watcher,
// including its share of the write. The cost of connections is not included.
func BenchmarkWatch(b *testing.B) {
	const watchers, writers = 500, 16
	h := withCronTabs(b)
	h.fill(writers)
	ctx, cancel := context.WithCancel(context.Background())
	var events, writes atomic.Int64
	var running sync.WaitGroup
	for range watchers {
		r := newRequest("GET", crontabs+"?watch=1&resourceVersion=0", "")
		r = r.WithContext(context.WithoutCancel(r.Context()))
		inner, stop := context.WithCancel(r.Context())
		context.AfterFunc(ctx, stop)
		running.Go(func() {
			h.server.ServeHTTP(&countingWriter{discardWriter{http.Header{}}, &events, &writes}, r.WithContext(inner))
		})
	}
	for events.Load() < watchers*(writers+1) { // the initial events
		h.do("GET", crontabs, "")
	}
	events.Store(0)
	writes.Store(0)
	began := cpuTime()
	changes := b.N/watchers + 1
	var wg sync.WaitGroup
	b.ResetTimer()
	for w := range writers {
		wg.Go(func() {
			for i := w; i < changes; i += writers {
				h.do("PATCH", fmt.Sprintf("%s/cron-%05d", crontabs, w), fmt.Sprintf(`{"spec":{"replicas":%d}}`, 1000+i),
					"Content-Type: application/merge-patch+json")
			}
		})
	}
	wg.Wait()
	for events.Load() < int64(watchers*changes) {
		h.do("GET", crontabs+"/a", "")
	}
	b.StopTimer()
	b.ReportMetric(float64((cpuTime()-began).Microseconds())/float64(events.Load()), "cpu-µs/event")
	b.ReportMetric(float64(events.Load())/float64(writes.Load()), "events/write")
	cancel()
	running.Wait()
}
