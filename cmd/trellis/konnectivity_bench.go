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

// konnectivityBenchFlags are the flags of konnectivity bench as they were typed.
type konnectivityBenchFlags struct {
	bench.Options
	server, agent string
	json          bool
}

func newKonnectivityBench() *cobra.Command {
	f := konnectivityBenchFlags{}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a tunnel server and agent, beside the reference's",
		Long: `Start a tunnel server and an agent on this machine, and measure what goes through
them: the throughput of one stream each way; 100 bulk streams with small requests
beside them; the same beside a reader that stalls; the memory of idle streams; how
long a dial takes. Throughput and dials stand beside those of direct connections
and of two plain relays in a row, without TLS between them and with it.

With --reference the same is measured with proxy-server and proxy-agent of that
folder, in turn. Processes are new for each scenario. The medians of all rounds are
printed; where a tunnel moved nothing any more in one direction, it says "stopped".
Bulk streams are half to the agent and half from it.

The reference's server is dialled as kube-apiserver does it, by a connection
each, and this one as Trellis does, with GRPC by one for all. The machine should
do nothing else. Linux only.`,
		Example: `  trellis konnectivity bench --reference bin --json >bench.json
  trellis konnectivity bench --scenario dial --rounds 1`,
		Args: takes("flags only", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.server, "server", "", "the tunnel server, a program with the flags of proxy-server; this one's if empty")
	flags.StringVar(&f.agent, "agent", "", "the agent, a program with the flags of proxy-agent; this one's if empty")
	flags.StringVar(&f.Reference, "reference", "", "folder with proxy-server and proxy-agent to compare with")
	flags.StringSliceVar(&f.Protocols, "protocol", []string{bench.GRPC, bench.HTTPConnect}, "how to talk to the server: grpc, http-connect")
	flags.StringSliceVar(&f.Scenarios, "scenario", bench.Scenarios(), "what to measure")
	flags.IntVar(&f.Rounds, "rounds", 3, "how often")
	flags.DurationVar(&f.Window, "window", 5*time.Second, "how long to measure something")
	flags.IntVar(&f.Idle, "idle", 10000, "how many idle streams")
	flags.BoolVar(&f.json, "json", false, "print JSON, with the numbers of each round")
	cmd.AddCommand(&cobra.Command{
		Use:    "far CERT",
		Hidden: true, // the command's own processes: the destination, relays
		Args:   takes("one CERT", 1, 1),
		RunE:   func(cmd *cobra.Command, args []string) error { return bench.Far(args[0], cmd.InOrStdin()) },
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
	klog.SetLogger(logr.Discard()) // the client logs each connection that ends
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
