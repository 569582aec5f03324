package bench_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/internal/konnectivity/bench"
)

// farSide has the test's program be the process behind the tunnels.
const farSide = "far"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == farSide {
		if err := bench.RunTarget(os.Args[2], os.Stdin); err != nil {
			panic(err)
		}
		return
	}
	klog.SetLogger(logr.Discard()) // the client logs each connection that ends
	os.Exit(m.Run())
}

func run(t *testing.T, o bench.Options) bench.Report {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o.Self, o.Rounds, o.Progress = []string{own, farSide}, 1, t.Output()
	report, err := bench.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := report.Table(t.Output()); err != nil {
		t.Fatal(err)
	}
	return report
}

// without are the columns that need no tunnel.
var without = []string{"direct", "two relays", "two relays, TLS"}

// What the machine can do without a tunnel is measured.
func TestFloors(t *testing.T) {
	report := run(t, bench.Options{Scenarios: []string{"stream", "bulk", "dial"}, Window: time.Second / 2})
	if len(report) != 7 {
		t.Errorf("%d metrics, want one stream each way, many with two of small requests, and two of dials", len(report))
	}
	for _, row := range report {
		for _, column := range without {
			busy := strings.HasPrefix(row.Metric, "100 streams") // in so short a time one direction may not get its turn
			if v, measured := row.Medians[column]; !measured || v == 0 || v < 0 && !busy {
				t.Errorf("%s, %s: %v", row.Metric, column, v)
			}
		}
	}
}

// The whole bench, quickly, with the reference in both places.
func TestRun(t *testing.T) {
	reference := os.Getenv("REFERENCE_KONNECTIVITY")
	if reference == "" {
		t.Skip("REFERENCE_KONNECTIVITY names no folder with proxy-server and proxy-agent: build them in a clone of kubernetes-sigs/apiserver-network-proxy with `go build -o bin ./cmd/server ./cmd/agent`, as bin/proxy-server and bin/proxy-agent")
	}
	report := run(t, bench.Options{
		Server: []string{reference + "/proxy-server"}, Agent: []string{reference + "/proxy-agent"}, Reference: reference,
		Protocols: []string{bench.GRPC, bench.HTTPConnect}, Scenarios: bench.Scenarios(), Window: time.Second, Idle: 100,
	})
	if want := 2 * (6 + 5 + 3 + 2 + 2); len(report) != want { // what has stopped has used no processor time for anything
		t.Errorf("%d metrics, want %d", len(report), want)
	}
	for _, row := range report {
		a, b := row.Medians["ours"], row.Medians["reference"]
		// The reference stops at a reader that stalls, whatever else it has to do. In so short a time little memory may not be
		// seen at all, nor an answer.
		vague := row.Unit == "KiB" || strings.Contains(row.Metric, "small request")
		switch stalls := strings.Contains(row.Metric, "stalled"); {
		case len(row.Rounds["ours"]) != 1 || len(row.Rounds["reference"]) != 1:
			t.Errorf("%s, %s: %v", row.Metric, row.Protocol, row.Rounds)
		case stalls && max(a, b) >= 0 || !stalls && !vague && max(a, b) <= 0:
			t.Errorf("%s, %s: %v, %v", row.Metric, row.Protocol, a, b)
		}
	}
}

// A program that cannot be measured is an error that shows what it says, and nothing is left behind.
func TestNotReady(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := []string{"/bin/sh", "-c", "echo no flag is mine; exit 1"}
	_, err = bench.Run(t.Context(), bench.Options{
		Server: script, Agent: script, Self: []string{own, farSide}, Protocols: []string{bench.GRPC}, Scenarios: []string{"dial"}, Rounds: 1, Progress: t.Output(),
	})
	if err == nil || !strings.Contains(err.Error(), "no flag is mine") {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
