package main

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

const scenarioTimeout = 2 * time.Minute // for one scenario with one subject, in addition to the measurement itself

// options configure a benchmark.
type options struct {
	Server, Agent []string      // command lines; runBenchmark appends flags that the reference programs also have
	Reference     string        // directory with proxy-server and proxy-agent to compare with; "" means none
	Self          []string      // command line of a program that calls runTarget
	Protocols     []string      // grpcMode, connectMode or both
	Scenarios     []string      // names of scenarios, from the function scenarioNames
	Rounds        int           // number of measurements; the report contains the medians
	Window        time.Duration // length of a measurement, after a quarter of it for warm-up
	Idle          int           // number of streams in the scenario "idle"
	Progress      io.Writer     // receives a line for each result
}

// environment is shared by all measurements.
type environment struct {
	options
	dir, cert string
	// targetAddresses lists the addresses of the target, of two relays to it, and of two relays with TLS
	// between them.
	targetAddresses []string
}

// runBenchmark measures the selected scenarios and returns the report. It leaves no processes or files behind. A tunnel
// that stops moving data is reported as a result and not as an error. The function returns an error if a process cannot
// be started or ctx is done.
func runBenchmark(ctx context.Context, o options) (benchReport, error) {
	if limit := raiseFiles() - spareFiles; slices.Contains(o.Scenarios, idle) && o.Idle > limit {
		return nil, fmt.Errorf("cannot open %d idle streams: the limit of open files allows %d (raise ulimit -n)",
			o.Idle, limit)
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	env := &environment{options: o, dir: dir, cert: filepath.Join(dir, "cert.pem")}
	if err := writeCert(env.cert); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	target, err := env.startTarget(ctx)
	defer func() { cancel(); target.wait() }()
	if err != nil {
		return nil, err
	}
	return env.report(ctx)
}

// startTarget starts the target process on listeners that it inherits.
func (env *environment) startTarget(ctx context.Context) (*process, error) {
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
		files, env.targetAddresses = append(files, f), append(env.targetAddresses, l.Addr().String())
	}
	return start(ctx, env.dir, append(slices.Clone(env.Self), env.cert), files...)
}

// report runs all scenarios, rounds and subjects. The subjects of a round are measured one after the other, so
// that compared results are close in time.
func (env *environment) report(ctx context.Context) (report benchReport, err error) {
	for _, s := range scenarios {
		for round := 1; round <= env.Rounds && slices.Contains(env.Scenarios, s.name); round++ {
			for _, subject := range env.subjects(s.withBaselines) {
				fmt.Fprintf(env.Progress, "%s, round %d of %d: %s %s\n",
					s.name, round, env.Rounds, subject.name, subject.protocol)
				samples, err := env.measure(ctx, s, subject)
				if err != nil {
					return nil, fmt.Errorf("%s, %s %s: %w", s.name, subject.name, subject.protocol, err)
				}
				for _, sample := range samples {
					fmt.Fprintf(env.Progress, "  %s: %s %s\n", sample.metric, number(sample.value), sample.unit)
					report.add(subject, sample, env.Protocols)
				}
			}
		}
	}
	if len(report) == 0 {
		err = fmt.Errorf("no known scenario is selected: want at least one of %q", scenarioNames())
	}
	return report, err
}

// measure runs one scenario with one subject, in new processes.
func (env *environment) measure(parent context.Context, s scenario, subject subject) ([]sample, error) {
	ctx, cancel := context.WithTimeout(parent, scenarioTimeout+10*env.Window)
	t := &tunnel{environment: env}
	defer func() {
		cancel()
		for _, p := range t.processes {
			p.wait()
		}
	}()
	if err := subject.start(ctx, t); err != nil {
		return nil, err
	}
	samples := s.run(ctx, t)
	if t.failed != nil {
		fmt.Fprintf(env.Progress, "  stopped: %v\n", t.failed)
	}
	return samples, parent.Err()
}
