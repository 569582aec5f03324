package main

import (
	"context"
	"encoding/json"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/internal/konnectivity/bench"
)

// konnectivityBenchFlags holds the values of the flags of konnectivity bench.
type konnectivityBenchFlags struct {
	bench.Options
	server, agent string
	json          bool
}

func newKonnectivityBench() *cobra.Command {
	f := konnectivityBenchFlags{}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Benchmark a Konnectivity server and agent",
		Long: `Start a Konnectivity server and an agent on this machine and measure: the throughput of
one stream in each direction; small requests during 100 bulk streams; the same during a
stalled reader; the memory of idle streams; the duration of a dial. For comparison,
throughput and dials are also measured with direct connections and with two plain relays,
with and without TLS between them.

With --reference the command also measures proxy-server and proxy-agent in that folder,
alternately. Each scenario uses new processes. The report has the medians of all rounds. It
prints "stopped" if a tunnel moved no more data in one direction. Half of the bulk streams
send data to the agent, half from it.

The command dials the reference's server as kube-apiserver does, with a connection for each
stream. It dials this program's server as Trellis does, with one connection for all streams
in the mode GRPC. The machine should be idle. The command runs only on Linux.`,
		Example: `  trellis konnectivity bench --reference bin --json >bench.json
  trellis konnectivity bench --scenario dial --rounds 1`,
		Args: takes("no arguments", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.server, "server", "",
		"program of the server, with the flags of proxy-server (empty means this program)")
	flags.StringVar(&f.agent, "agent", "",
		"program of the agent, with the flags of proxy-agent (empty means this program)")
	flags.StringVar(&f.Reference, "reference", "", "folder of proxy-server and proxy-agent for the comparison")
	flags.StringSliceVar(&f.Protocols, "protocol", []string{bench.GRPC, bench.HTTPConnect},
		"protocols of the server: grpc, http-connect")
	flags.StringSliceVar(&f.Scenarios, "scenario", bench.Scenarios(), "scenarios to measure")
	flags.IntVar(&f.Rounds, "rounds", 3, "number of rounds")
	flags.DurationVar(&f.Window, "window", 5*time.Second, "duration of a measurement")
	flags.IntVar(&f.Idle, "idle", 10000, "number of idle streams")
	flags.BoolVar(&f.json, "json", false, "output as JSON, with the numbers of each round")
	cmd.AddCommand(&cobra.Command{
		Use:    "far CERT",
		Hidden: true, // runs the destination and the relays
		Args:   takes("one CERT", 1, 1),
		RunE:   func(cmd *cobra.Command, args []string) error { return bench.RunTarget(args[0], cmd.InOrStdin()) },
	})
	return cmd
}

func (f *konnectivityBenchFlags) run(cmd *cobra.Command) error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	f.Self = []string{own, "konnectivity", "bench", "far"}
	f.Server, f.Agent = []string{f.server}, []string{f.agent}
	if f.server == "" {
		f.Server = []string{own, "konnectivity", "server"}
	}
	if f.agent == "" {
		f.Agent = []string{own, "konnectivity", "agent"}
	}
	f.Progress = cmd.ErrOrStderr()
	klog.SetLogger(logr.Discard()) // the client logs the end of each connection
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	report, err := bench.Run(ctx, f.Options)
	if err != nil {
		return err
	}
	if !f.json {
		return report.Table(cmd.OutOrStdout())
	}
	e := json.NewEncoder(cmd.OutOrStdout())
	e.SetIndent("", "  ")
	return e.Encode(report)
}
