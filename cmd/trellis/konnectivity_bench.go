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
		Long: `Start a Konnectivity server and an agent on this machine, and measure them in these scenarios:

  stream   throughput of one stream in each direction
  bulk     throughput of 100 streams, and duration of small requests at the same time. Half of
           the streams send data to the agent, the other half send data from the agent
  stalled  the same as bulk, with one more stream that the client does not read
  idle     memory of idle streams
  dial     duration of a dial

For comparison, stream, bulk and dial also measure connections without Konnectivity: direct
connections, connections through two relays, and connections through two relays with TLS between them.

With --reference, the command also measures the programs proxy-server and proxy-agent of the
reference implementation (kubernetes-sigs/apiserver-network-proxy). Each measurement uses new
processes. The report contains the median of all rounds. "stopped" means that a tunnel no longer
transferred data in one direction.

The command dials the reference proxy-server as kube-apiserver does, with one connection for each
stream. It dials the server of Trellis as Trellis does. In the mode GRPC this is one connection for
all streams. The machine should be idle. The command runs only on Linux.`,
		Example: `  trellis konnectivity bench --reference bin --json >bench.json
  trellis konnectivity bench --scenario dial --rounds 1`,
		Args: takes("no arguments", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.server, "server", "",
		"path of the server program. It must accept the flags of proxy-server (empty means this program)")
	flags.StringVar(&f.agent, "agent", "",
		"path of the agent program. It must accept the flags of proxy-agent (empty means this program)")
	flags.StringVar(&f.Reference, "reference", "", "folder that contains proxy-server and proxy-agent to compare with")
	flags.StringSliceVar(&f.Protocols, "protocol", []string{bench.GRPC, bench.HTTPConnect},
		"protocols to measure: grpc, http-connect")
	flags.StringSliceVar(&f.Scenarios, "scenario", bench.Scenarios(), "scenarios to measure")
	flags.IntVar(&f.Rounds, "rounds", 3, "number of measurements of each scenario")
	flags.DurationVar(&f.Window, "window", 5*time.Second, "duration of a measurement")
	flags.IntVar(&f.Idle, "idle", 10000, "number of streams in the scenario idle")
	flags.BoolVar(&f.json, "json", false, "print the report as JSON, with the numbers of each round")
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
