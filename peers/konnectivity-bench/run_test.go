package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == targetCommand {
		if err := runTarget(os.Args[2], os.Stdin); err != nil {
			panic(err)
		}
		return
	}
	klog.SetLogger(logr.Discard()) // the reference client logs each closed connection
	os.Exit(m.Run())
}

func runOnce(t *testing.T, o options) benchReport {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o.Self, o.Rounds, o.Progress = []string{executable, targetCommand}, 1, t.Output()
	report, err := runBenchmark(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := report.table(t.Output()); err != nil {
		t.Fatal(err)
	}
	return report
}

// untunnelled holds the columns that need no tunnel.
var untunnelled = []string{"direct", "two relays", "two relays, TLS"}

// TestUntunnelledColumns checks that the columns without a tunnel are measured.
func TestUntunnelledColumns(t *testing.T) {
	report := runOnce(t, options{Scenarios: []string{"stream", "bulk", "dial"}, Window: time.Second / 2})
	if len(report) != 7 {
		t.Errorf("%d metrics, want 7: one stream in each direction, 100 streams with small requests, and dials",
			len(report))
	}
	for _, row := range report {
		for _, column := range untunnelled {
			// one direction may receive nothing in such a short time
			busy := strings.HasPrefix(row.Metric, "100 streams")
			if v, measured := row.Medians[column]; !measured || v == 0 || v < 0 && !busy {
				t.Errorf("%s, %s: got %v, want a positive value", row.Metric, column, v)
			}
		}
	}
}

// TestRun checks a short run of the whole benchmark, with reference programs on both sides.
func TestRun(t *testing.T) {
	reference := os.Getenv("REFERENCE_KONNECTIVITY")
	if reference == "" {
		t.Skip("REFERENCE_KONNECTIVITY is not set: build cmd/server and cmd/agent of " +
			"kubernetes-sigs/apiserver-network-proxy as proxy-server and proxy-agent, and set it to their directory")
	}
	report := runOnce(t, options{
		Server: []string{reference + "/proxy-server"}, Agent: []string{reference + "/proxy-agent"},
		Reference: reference, Protocols: []string{grpcMode, connectMode}, Scenarios: scenarioNames(),
		Window: time.Second, Idle: 100,
	})
	if want := 2 * (6 + 5 + 3 + 2 + 2); len(report) != want { // a stalled stream has no metric of CPU time
		t.Errorf("%d metrics, want %d", len(report), want)
	}
	for _, row := range report {
		a, b := row.Medians["ours"], row.Medians["reference"]
		// A stalled reader blocks all connections of a reference program. In such a short time, low memory use may
		// not be measured, and no small request may be answered.
		optional := row.Unit == "KiB" || strings.Contains(row.Metric, "small request")
		switch stalls := strings.Contains(row.Metric, "stalled"); {
		case len(row.Rounds["ours"]) != 1 || len(row.Rounds["reference"]) != 1:
			t.Errorf("%s, %s: got rounds %v, want one for each implementation", row.Metric, row.Protocol, row.Rounds)
		case stalls && max(a, b) >= 0 || !stalls && !optional && max(a, b) <= 0:
			t.Errorf("%s, %s: unexpected values %v and %v", row.Metric, row.Protocol, a, b)
		}
	}
}

// TestNotReady checks that a program which exits early causes an error with its output, and that no file is
// left.
func TestNotReady(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := []string{"/bin/sh", "-c", "echo unknown flag; exit 1"}
	_, err = runBenchmark(t.Context(), options{
		Server: script, Agent: script, Self: []string{executable, targetCommand}, Protocols: []string{grpcMode},
		Scenarios: []string{"dial"}, Rounds: 1, Progress: t.Output(),
	})
	if err == nil || !strings.Contains(err.Error(), "unknown flag") {
		t.Errorf("runBenchmark: error %v, want the program's output", err)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("files left: %v, error %v", left, err)
	}
}
