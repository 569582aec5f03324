package bench_test

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/bench"
)

// farSide has the test's program be the process behind the tunnels.
const farSide = "far"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == farSide {
		if err := bench.Far(os.Args[2], os.Stdin); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// The whole bench, quickly, with the reference in both places.
func TestRun(t *testing.T) {
	reference := os.Getenv("REFERENCE_KONNECTIVITY")
	if reference == "" {
		t.Skip("REFERENCE_KONNECTIVITY names no folder with proxy-server and proxy-agent: build them with `make build` in a clone of kubernetes-sigs/apiserver-network-proxy")
	}
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const idle = 100
	report, err := bench.Run(t.Context(), bench.Options{
		Server: []string{reference + "/proxy-server"}, Agent: []string{reference + "/proxy-agent"}, Reference: reference,
		Self: []string{own, farSide}, Protocols: []string{bench.GRPC, bench.HTTPConnect}, Scenarios: bench.Scenarios(),
		Rounds: 1, Window: time.Second, Idle: idle, Progress: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range report {
		columns := []string{"ours", "reference"}
		if row.Protocol == "" {
			columns = []string{"direct", "two relays", "two relays, TLS"}
		}
		for _, column := range columns {
			v, measured := row.Medians[column]
			if stalls := strings.Contains(row.Metric, "stalled"); !measured || !stalls && v < 0 {
				t.Errorf("%s, %s %s: %v", row.Metric, column, row.Protocol, v)
			}
		}
	}
	var table bytes.Buffer
	if err := report.Table(&table); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(t.Output(), &table)
}
