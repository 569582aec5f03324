// Package bench measures a Konnectivity server and agent, which run as processes, beside others that take the same flags and
// beside what the machine can do: direct connections, and plain relays. Linux only.
package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const scenarioTimeout = 2 * time.Minute // for one scenario with one tunnel, beside what is measured

// Options are what to measure.
type Options struct {
	Server, Agent []string      // command lines, which take the flags of the reference behind them
	Reference     string        // folder with other ones, proxy-server and proxy-agent; "" for none
	Self          []string      // command line of a program that calls Far
	Protocols     []string      // of GRPC, HTTPConnect
	Scenarios     []string      // of Scenarios
	Rounds        int           // how often; the medians count
	Window        time.Duration // how long to measure something, after a quarter of it to warm up
	Idle          int           // streams of the scenario idle
	Progress      io.Writer     // a line for each number
}

// environment is what all measurements stand on.
type environment struct {
	Options
	dir, cert       string
	targetAddresses []string // addresses: the destination; two relays before it; the same with TLS between them
}

// Run measures. It leaves no process and no file behind. A tunnel that stands still is a result; the error is that something could
// not be started, or that ctx is done.
func Run(ctx context.Context, o Options) (Report, error) {
	if most := raiseFiles() - spareFiles; slices.Contains(o.Scenarios, idle) && o.Idle > most {
		return nil, fmt.Errorf("%d idle streams: a process may have %d at most (raise ulimit -n)", o.Idle, most)
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b := &environment{Options: o, dir: dir, cert: filepath.Join(dir, "cert.pem")}
	if err := writeCert(b.cert); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	far, err := b.startTarget(ctx)
	defer func() { cancel(); far.wait() }()
	if err != nil {
		return nil, err
	}
	return b.report(ctx)
}

// startTarget starts the process of what is behind the tunnels, on listeners that it inherits.
func (b *environment) startTarget(ctx context.Context) (*process, error) {
	var files []*os.File
	for range targetListeners {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			return nil, err
		}
		defer l.Close()
		f, err := l.File()
		if err != nil {
			return nil, err
		}
		defer f.Close()
		files, b.targetAddresses = append(files, f), append(b.targetAddresses, l.Addr().String())
	}
	return start(ctx, b.dir, append(slices.Clone(b.Self), b.cert), files...)
}

// report goes through scenarios, rounds and tunnels, so that what is compared lies next to each other in time.
func (b *environment) report(ctx context.Context) (r Report, err error) {
	for _, s := range scenarios {
		for round := 1; round <= b.Rounds && slices.Contains(b.Scenarios, s.name); round++ {
			for _, sub := range b.subjects(s.withBaselines) {
				fmt.Fprintf(b.Progress, "%s, round %d of %d: %s %s\n", s.name, round, b.Rounds, sub.name, sub.protocol)
				samples, err := b.measure(ctx, s, sub)
				if err != nil {
					return nil, fmt.Errorf("%s, %s %s: %w", s.name, sub.name, sub.protocol, err)
				}
				for _, sample := range samples {
					fmt.Fprintf(b.Progress, "  %s: %s %s\n", sample.metric, number(sample.value), sample.unit)
					r.add(sub, sample, b.Protocols)
				}
			}
		}
	}
	if len(r) == 0 {
		err = fmt.Errorf("there is nothing to measure: scenarios are %q", Scenarios())
	}
	return r, err
}

// measure is one scenario with one tunnel, of processes that are started for it alone.
func (b *environment) measure(parent context.Context, s scenario, sub subject) ([]sample, error) {
	ctx, cancel := context.WithTimeout(parent, scenarioTimeout+10*b.Window)
	t := &tunnel{environment: b}
	defer func() {
		cancel()
		for _, p := range t.processes {
			p.wait()
		}
	}()
	if err := sub.start(ctx, t); err != nil {
		return nil, err
	}
	samples := s.run(ctx, t)
	if t.failed != nil {
		fmt.Fprintf(b.Progress, "  stopped: %v\n", t.failed)
	}
	return samples, parent.Err()
}
