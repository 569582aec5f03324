package main

import (
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	smallBytes    = 100                  // size of a request and of its response
	smallInterval = 5 * time.Millisecond // pause between a response and the next request
)

// latencies collects the durations of sequential operations.
type latencies struct {
	mu    sync.Mutex
	done  []time.Duration
	since time.Time // start of the current operation; zero if there is none
}

// time records the duration of f unless f fails.
func (l *latencies) time(f func() error) error {
	start := time.Now()
	l.set(start, 0)
	err := f()
	if err == nil {
		l.set(time.Time{}, time.Since(start))
	}
	return err
}

func (l *latencies) set(since time.Time, done time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since = since; done > 0 {
		l.done = append(l.done, done)
	}
}

// sendRequests sends small requests and reads the responses until the connection ends.
func (l *latencies) sendRequests(c net.Conn) {
	data := make([]byte, smallBytes)
	for l.time(func() error {
		if _, err := c.Write(data); err != nil {
			return err
		}
		_, err := io.ReadFull(c, data)
		return err
	}) == nil {
		<-time.After(smallInterval)
	}
}

// samples returns the p50 and p99 of the durations. If the current operation has taken longer than limit, both
// samples have the value stopped.
func (l *latencies) samples(name string, limit time.Duration) []sample {
	l.mu.Lock()
	defer l.mu.Unlock()
	p50, p99 := sample{name + " p50", "ms", stopped}, sample{name + " p99", "ms", stopped}
	if n := len(l.done); n > 0 && (l.since.IsZero() || time.Since(l.since) < limit) {
		slices.Sort(l.done)
		p50.value, p99.value = l.done[n/2].Seconds()*1000, l.done[n*99/100].Seconds()*1000
	}
	return []sample{p50, p99}
}
