package soak_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// settleTime limits the time until a server has released resources of the load, such as idle connections.
const settleTime = 30 * time.Second

// sample is the use of resources by a process.
type sample struct {
	goroutines, descriptors float64
	heap, resident          float64 // bytes
}

// meter compares the samples of a server with an earlier one.
type meter struct {
	name      string
	client    *client
	warm      int // number of samples until the reference, while caches fill
	samples   int // since the start
	compared  int // number of comparisons
	reference sample
	last      sample
}

// String returns the last sample.
func (m *meter) String() string {
	s := m.last
	return fmt.Sprintf("%s: %.0f goroutines, %.0f descriptors, heap %.1f MiB, resident %.0f MiB", m.name, s.goroutines,
		s.descriptors, s.heap/(1<<20), s.resident/(1<<20))
}

// reset discards all samples, because the process has restarted or the controllers run in another process.
func (m *meter) reset() { m.samples, m.reference = 0, sample{} }

// measure takes a sample. It returns an error if the server uses more than at the reference after settleTime.
func (m *meter) measure() error {
	m.samples++
	deadline, excess := settleTime/10, error(nil)
	if m.samples > m.warm {
		deadline = settleTime
		m.compared++
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	err := wait.PollUntilContextCancel(ctx, settleTime/60, true, func(context.Context) (bool, error) {
		var err error
		m.last, err = m.client.sample()
		excess = m.last.above(m.reference)
		return m.samples > m.warm && excess == nil, err
	})
	switch {
	case err != nil && ctx.Err() == nil:
		return err
	case m.samples <= m.warm:
		m.reference = m.last
		return nil
	case excess != nil:
		profile, _ := m.client.get(context.Background(), "/debug/pprof/goroutine?debug=1")
		return fmt.Errorf("%w\n%s", excess, profile[:min(len(profile), 10000)])
	}
	return nil
}

// above returns an error if a sample is above another one by more than a tolerance. Connections and caches cause small
// differences. The resident memory is not compared, because the runtime returns it to the system late.
func (s sample) above(reference sample) error {
	limit := func(resource string, got, want, tolerance float64) error {
		if got > want+tolerance {
			return fmt.Errorf("%s: %.0f, and %.0f earlier in the life of this process", resource, got, want)
		}
		return nil
	}
	return errors.Join(
		limit("goroutines", s.goroutines, reference.goroutines, 20),
		limit("descriptors", s.descriptors, reference.descriptors, 10),
		limit("bytes of heap", s.heap, reference.heap, reference.heap/5+4<<20))
}

// sample reads the metrics of a server, and the size of its heap after a garbage collection. The metric of the heap
// would include the garbage of the request that has collected it.
func (c *client) sample() (s sample, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	profile, err := c.get(ctx, "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return s, err
	}
	text, err := c.get(ctx, "/metrics")
	if err != nil {
		return s, err
	}
	fields := map[string]*float64{"# HeapAlloc =": &s.heap, "go_goroutines": &s.goroutines,
		"process_open_fds": &s.descriptors, "process_resident_memory_bytes": &s.resident}
	for line := range bytes.Lines(slices.Concat(profile, text)) {
		line = bytes.TrimSpace(line)
		i := max(0, bytes.LastIndexByte(line, ' '))
		if f := fields[string(line[:i])]; f != nil {
			if *f, err = strconv.ParseFloat(string(line[i+1:]), 64); err != nil {
				return s, fmt.Errorf("%s: %w", line, err)
			}
			delete(fields, string(line[:i]))
		}
	}
	if len(fields) > 0 {
		return s, fmt.Errorf("missing metrics: %v", fields)
	}
	return s, nil
}
