package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	bulkStreams = 100
	smallBytes  = 100                  // in a request, and in its answer
	smallPause  = 5 * time.Millisecond // between an answer and the next request
	openers     = 64                   // of idle streams, at the same time
	warmDials   = 50                   // which do not count
	mostDials   = 2000                 // more would use up the machine's ports

	stopped = -1.0 // as a number: nothing moved any more
	idle    = "idle"
)

// sample is one number of one round.
type sample struct {
	metric, unit string
	value        float64
}

type scenario struct {
	name   string
	floors bool // is measured without a tunnel, too
	run    func(ctx context.Context, t *tunnel) []sample
}

var scenarios = []scenario{
	{"stream", true, func(ctx context.Context, t *tunnel) []sample {
		return append(oneStream(ctx, t, sink, "1 stream, to the agent"), oneStream(ctx, t, source, "1 stream, from the agent")...)
	}},
	{"bulk", false, func(ctx context.Context, t *tunnel) []sample { return manyStreams(ctx, t, "100 streams") }},
	{"stalled", false, func(ctx context.Context, t *tunnel) []sample {
		return manyStreams(ctx, t, "100 streams, 1 stalled", source) // which nobody reads
	}},
	{idle, false, idleStreams},
	{"dial", true, dials},
}

// Scenarios are the names of what there is to measure.
func Scenarios() (names []string) {
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

func oneStream(ctx context.Context, t *tunnel, role byte, name string) []sample {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var bytes atomic.Int64
	t.bulk(ctx, &bytes, role)
	return t.rate(ctx, name, &bytes)
}

// manyStreams are half to the agent and half from it, with small requests beside them, and more that nobody reads.
func manyStreams(ctx context.Context, t *tunnel, name string, unread ...byte) []sample {
	var bytes atomic.Int64
	var small latencies
	c, err := t.open(ctx, echo)
	if err != nil {
		t.failed = err
	}
	for i := 0; i < bulkStreams && t.failed == nil; i++ {
		t.bulk(ctx, &bytes, [...]byte{sink, source}[i%2])
	}
	for _, role := range unread {
		if _, err := t.open(ctx, role); err != nil {
			t.failed = err
		}
	}
	if t.failed == nil {
		go small.ask(c)
	}
	all := t.rate(ctx, name, &bytes)
	return append(all, small.samples(name+", small request")...)
}

// bulk opens a stream that moves all it can, to the agent (sink) or from it (source), until ctx is done.
func (t *tunnel) bulk(ctx context.Context, bytes *atomic.Int64, role byte) {
	c, err := t.open(ctx, role)
	if err != nil {
		t.failed = err
		return
	}
	context.AfterFunc(ctx, func() { _ = c.Close() })
	move := write
	if role == source {
		move = func(_ io.Writer, count func(int)) { read(c, count) }
	}
	go move(c, func(n int) { bytes.Add(int64(n)) })
}

func read(r io.Reader, count func(int)) {
	for data := make([]byte, chunk); ; {
		n, err := r.Read(data)
		if count(n); err != nil {
			return
		}
	}
}

// rate warms up for a quarter of the window, and then says what goes through in one, and at what cost. Where nothing does in
// its last quarter the tunnel has stopped.
func (t *tunnel) rate(ctx context.Context, name string, bytes *atomic.Int64) []sample {
	throughput := sample{name, "MiB/s", stopped}
	pause(ctx, t.Window/4)
	first, before, begin := bytes.Load(), t.used(), time.Now()
	pause(ctx, t.Window*3/4)
	late := bytes.Load()
	pause(ctx, t.Window/4)
	last, after, took := bytes.Load(), t.used(), time.Since(begin)
	if last == late {
		return []sample{throughput}
	}
	throughput.value = float64(last-first) / (1 << 20) / took.Seconds()
	all := []sample{throughput}
	for i, who := range after {
		all = append(all, sample{name + ", " + who.name + "'s processor time", "s/GiB", (who.cpu - before[i].cpu) * (1 << 30) / float64(last-first)})
	}
	return all
}

// pause waits for d, or for ctx, which ends all that is measured.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// idleStreams shows what streams that are open cost the processes in memory.
func idleStreams(ctx context.Context, t *tunnel) (all []sample) {
	before := t.used()
	failures := make(chan error, openers)
	var group sync.WaitGroup
	for opener := range openers {
		group.Go(func() {
			for i := opener; i < t.Idle; i += openers {
				if _, err := t.open(ctx, sink); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	group.Wait()
	close(failures)
	t.failed = <-failures
	pause(ctx, t.Window) // what opening has left behind is collected
	for i, who := range t.used() {
		each := (who.memory - before[i].memory) / float64(t.Idle) / 1024
		if t.failed != nil {
			each = stopped
		}
		all = append(all, sample{fmt.Sprintf("%d idle streams, %s's memory for each", t.Idle, who.name), "KiB", each})
	}
	return all
}

// dials are made one after the other, each closed before the next.
func dials(ctx context.Context, t *tunnel) []sample {
	var took latencies
	for begin, n := time.Now(), 0; n < mostDials && time.Since(begin) < t.Window && t.failed == nil; n++ {
		dialing, cancel := context.WithTimeout(ctx, dialLimit)
		start := time.Now()
		c, err := t.dial(dialing, t.target)
		cancel()
		if err != nil {
			t.failed = err
			return (&latencies{}).samples("dial")
		}
		if n > warmDials {
			took.done = append(took.done, time.Since(start))
		}
		_ = c.Close() // what a client says of how the far end took it is no matter here
	}
	return took.samples("dial")
}

// latencies are of requests that are made one after the other.
type latencies struct {
	mu      sync.Mutex
	done    []time.Duration
	waiting time.Time // since when the last one has been; zero if it is not
}

// ask sends small requests until the connection ends.
func (l *latencies) ask(c io.ReadWriter) {
	for data := make([]byte, smallBytes); ; {
		start := time.Now()
		l.set(start, 0)
		if _, err := c.Write(data); err != nil {
			return
		}
		if _, err := io.ReadFull(c, data); err != nil {
			return
		}
		l.set(time.Time{}, time.Since(start))
		<-time.After(smallPause)
	}
}

func (l *latencies) set(waiting time.Time, done time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting = waiting; done > 0 {
		l.done = append(l.done, done)
	}
}

// samples are p50 and p99. A request that still waits counts as if it were answered now.
func (l *latencies) samples(name string) []sample {
	l.mu.Lock()
	defer l.mu.Unlock()
	p50, p99 := sample{name + " p50", "ms", stopped}, sample{name + " p99", "ms", stopped}
	if n := len(l.done); n > 0 {
		all := l.done
		if !l.waiting.IsZero() {
			all = append(all, time.Since(l.waiting))
		}
		slices.Sort(all)
		p50.value, p99.value = all[len(all)/2].Seconds()*1000, all[len(all)*99/100].Seconds()*1000
	}
	return []sample{p50, p99}
}
