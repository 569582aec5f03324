package main

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
	openers        = 64   // goroutines that open idle streams
	maxDials       = 2000 // limits the used ephemeral ports
	maxWarmupDials = 50   // the first dials, which are not counted
	dialTimeout    = 20 * time.Second

	stopped = -1.0 // the value of a sample if no data was moved
	idle    = "idle"
)

// sample is one result of one round.
type sample struct {
	metric, unit string
	value        float64
}

type scenario struct {
	name          string
	withBaselines bool // also measured without a tunnel
	run           func(ctx context.Context, t *tunnel) []sample
}

var scenarios = []scenario{
	{"stream", true, func(ctx context.Context, t *tunnel) []sample {
		return append(oneStream(ctx, t, sink, "1 stream, to the agent"),
			oneStream(ctx, t, source, "1 stream, from the agent")...)
	}},
	{"bulk", true, func(ctx context.Context, t *tunnel) []sample { return manyStreams(ctx, t, "100 streams", false) }},
	{"stalled", false, func(ctx context.Context, t *tunnel) []sample {
		return manyStreams(ctx, t, "100 streams, 1 stalled", true)
	}},
	{idle, false, idleStreams},
	{"dial", true, dials},
}

// scenarioNames returns the names of all scenarios.
func scenarioNames() (names []string) {
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

// manyStreams measures bulk streams, half of them in each direction, with small requests at the same time. If
// stall is true, there is also one stream that is never read. All streams are opened before data moves, because a
// stalled stream may block the tunnel so that no more streams can be opened.
func manyStreams(ctx context.Context, t *tunnel, name string, stall bool) []sample {
	var bytes [2]atomic.Int64 // to the agent, from it
	var small latencies
	startStalled, start := make(chan struct{}), make(chan struct{})
	t.stream(ctx, start, echo, small.sendRequests)
	for i := range bulkStreams {
		role := [...]byte{sink, source}[i%2]
		t.stream(ctx, start, role, bulk(&bytes[i%2], role))
	}
	if stall {
		t.stream(ctx, startStalled, source, func(net.Conn) {})
		close(startStalled)
		pause(ctx, t.Window/4)
	}
	close(start)
	all := t.rate(ctx, name, &bytes[0], &bytes[1])
	return append(all, small.samples(name+", small request", t.Window/2)...)
}

// stream opens a connection in one of the target's roles. After the channel start is closed, it calls the function
// use with the connection. The connection is closed when ctx is done.
func (t *tunnel) stream(ctx context.Context, start <-chan struct{}, role byte, use func(net.Conn)) {
	c, err := t.open(ctx)
	if err != nil {
		t.failed = err
		return
	}
	go func() {
		<-start
		if _, err := c.Write([]byte{role}); err == nil {
			use(c)
		}
	}()
}

// open opens a connection to the target, which is closed when ctx is done. After a failure it does not try
// again, because another timeout could use up the remaining time.
func (t *tunnel) open(ctx context.Context) (net.Conn, error) {
	if t.failed != nil {
		return nil, t.failed
	}
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := t.dial(dialCtx, t.target)
	if err == nil {
		context.AfterFunc(ctx, func() { _ = c.Close() })
	}
	return c, err
}

// bulk returns a function that moves as much data as possible and counts it.
func bulk(bytes *atomic.Int64, role byte) func(net.Conn) {
	return func(c net.Conn) {
		f := c.Write
		if role == source {
			f = c.Read
		}
		repeat(f, func(n int) { bytes.Add(int64(n)) })
	}
}

// rate measures the throughput and the CPU time per byte during options.Window, after a quarter of that time for
// warm-up. If a counter does not move in the second half, the tunnel has stopped.
func (t *tunnel) rate(ctx context.Context, name string, counters ...*atomic.Int64) []sample {
	pause(ctx, t.Window/4)
	first, before, start := load(counters), t.processUsage(), time.Now()
	pause(ctx, t.Window/2)
	late := load(counters)
	pause(ctx, t.Window/2)
	last, after, took := load(counters), t.processUsage(), time.Since(start)
	var moved float64
	for i := range counters {
		if last[i] == late[i] {
			return []sample{{name, "MiB/s", stopped}}
		}
		moved += float64(last[i] - first[i])
	}
	all := []sample{{name, "MiB/s", moved / (1 << 20) / took.Seconds()}}
	for i, usage := range after {
		perGiB := (usage.cpu - before[i].cpu) * (1 << 30) / moved
		all = append(all, sample{name + ", " + usage.name + "'s processor time", "s/GiB", perGiB})
	}
	return all
}

func load(counters []*atomic.Int64) (all []int64) {
	for _, c := range counters {
		all = append(all, c.Load())
	}
	return all
}

// pause waits for d or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// idleStreams measures the memory per idle stream of the server and the agent.
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
	pause(ctx, 3*t.Window) // time to free memory that was needed only for opening
	for i, usage := range t.processUsage() {
		each := (usage.memory - before[i].memory) / float64(t.Idle) / 1024
		if t.failed != nil {
			each = stopped
		}
		metric := fmt.Sprintf("%d idle streams, %s's memory per stream", t.Idle, usage.name)
		all = append(all, sample{metric, "KiB", each})
	}
	return all
}

// dials measures connections that are opened and closed one after the other.
func dials(ctx context.Context, t *tunnel) []sample {
	var took latencies
	for start := time.Now(); len(took.done) < maxDials && time.Since(start) < t.Window && t.failed == nil; {
		var c net.Conn
		t.failed = took.time(func() (err error) {
			c, err = t.open(ctx)
			return err
		})
		if t.failed == nil {
			_ = c.Close() // whether this succeeds does not matter
		}
	}
	took.done = took.done[min(maxWarmupDials, len(took.done)/2):]
	if t.failed != nil {
		took.done = nil
	}
	return took.samples("dial", t.Window)
}
