package bench

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	bulkStreams    = 100
	openers        = 64   // of idle streams, at the same time
	maxDials       = 2000 // more would use up the machine's ports
	maxWarmupDials = 50   // at most, which do not count
	dialTimeout    = 20 * time.Second

	stopped = -1.0 // as a number: nothing moved any more
	idle    = "idle"
)

// sample is one number of one round.
type sample struct {
	metric, unit string
	value        float64
}

type scenario struct {
	name          string
	withBaselines bool // is measured without a tunnel, too
	run           func(ctx context.Context, t *tunnel) []sample
}

var scenarios = []scenario{
	{"stream", true, func(ctx context.Context, t *tunnel) []sample {
		return append(oneStream(ctx, t, sink, "1 stream, to the agent"), oneStream(ctx, t, source, "1 stream, from the agent")...)
	}},
	{"bulk", true, func(ctx context.Context, t *tunnel) []sample { return manyStreams(ctx, t, "100 streams", false) }},
	{"stalled", false, func(ctx context.Context, t *tunnel) []sample {
		return manyStreams(ctx, t, "100 streams, 1 stalled", true)
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
	begin := make(chan struct{})
	t.stream(ctx, begin, role, bulk(&bytes, role))
	close(begin)
	return t.rate(ctx, name, &bytes)
}

// manyStreams are half to the agent and half from it, with small requests beside them, and perhaps one more that nobody reads. All
// are open before one moves: a tunnel that a stalled stream stops opens none.
func manyStreams(ctx context.Context, t *tunnel, name string, stall bool) []sample {
	var bytes [2]atomic.Int64 // to the agent, from it
	var small latencies
	first, begin := make(chan struct{}), make(chan struct{})
	t.stream(ctx, begin, echo, small.sendRequests)
	for i := range bulkStreams {
		role := [...]byte{sink, source}[i%2]
		t.stream(ctx, begin, role, bulk(&bytes[i%2], role))
	}
	if stall {
		t.stream(ctx, first, source, func(net.Conn) {})
		close(first)
		pause(ctx, t.Window/4)
	}
	close(begin)
	all := t.rate(ctx, name, &bytes[0], &bytes[1])
	return append(all, small.samples(name+", small request", t.Window/2)...)
}

// stream opens a connection, which ends with ctx, and uses it in one of the destination's roles from begin on.
func (t *tunnel) stream(ctx context.Context, begin <-chan struct{}, role byte, use func(net.Conn)) {
	c, err := t.open(ctx)
	if err != nil {
		t.failed = err
		return
	}
	go func() {
		<-begin
		if _, err := c.Write([]byte{role}); err == nil {
			use(c)
		}
	}()
}

// open dials the destination; the connection ends with ctx. After a failure there is no second: it may have taken all the time there is.
func (t *tunnel) open(ctx context.Context) (net.Conn, error) {
	if t.failed != nil {
		return nil, t.failed
	}
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := t.dial(dialing, t.target)
	if err == nil {
		context.AfterFunc(ctx, func() { _ = c.Close() })
	}
	return c, err
}

// bulk moves and counts all it can.
func bulk(bytes *atomic.Int64, role byte) func(net.Conn) {
	return func(c net.Conn) {
		f := c.Write
		if role == source {
			f = c.Read
		}
		repeat(f, func(n int) { bytes.Add(int64(n)) })
	}
}

// rate warms up for a quarter of the window, and then says what goes through in one, and at what cost. Where one of the counters
// stands still in the second half, the tunnel has stopped.
func (t *tunnel) rate(ctx context.Context, name string, counters ...*atomic.Int64) []sample {
	pause(ctx, t.Window/4)
	first, before, begin := load(counters), t.processUsage(), time.Now()
	pause(ctx, t.Window/2)
	late := load(counters)
	pause(ctx, t.Window/2)
	last, after, took := load(counters), t.processUsage(), time.Since(begin)
	var moved float64
	for i := range counters {
		if last[i] == late[i] {
			return []sample{{name, "MiB/s", stopped}}
		}
		moved += float64(last[i] - first[i])
	}
	all := []sample{{name, "MiB/s", moved / (1 << 20) / took.Seconds()}}
	for i, who := range after {
		all = append(all, sample{name + ", " + who.name + "'s processor time", "s/GiB", (who.cpu - before[i].cpu) * (1 << 30) / moved})
	}
	return all
}

func load(counters []*atomic.Int64) (all []int64) {
	for _, c := range counters {
		all = append(all, c.Load())
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
	before := t.processUsage()
	failures := make(chan error, openers)
	var group sync.WaitGroup
	for opener := range openers {
		group.Go(func() {
			for i := opener; i < t.Idle; i += openers {
				if _, err := t.open(ctx); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	group.Wait()
	close(failures)
	t.failed = <-failures
	pause(ctx, 3*t.Window) // what opening has left behind is collected
	for i, who := range t.processUsage() {
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
	for begin := time.Now(); len(took.done) < maxDials && time.Since(begin) < t.Window && t.failed == nil; {
		var c net.Conn
		t.failed = took.time(func() (err error) {
			c, err = t.open(ctx)
			return err
		})
		if t.failed == nil {
			_ = c.Close() // what a client says of how the far end took it is no matter here
		}
	}
	took.done = took.done[min(maxWarmupDials, len(took.done)/2):]
	if t.failed != nil {
		took.done = nil
	}
	return took.samples("dial", t.Window)
}
