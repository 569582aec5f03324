// Command konnectivity-bench measures a Konnectivity server and agent, which run as processes. It compares them with
// the reference implementation, and with baselines: direct connections and plain relays. It supports only Linux.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

const helpText = `usage: konnectivity-bench [flags]

Starts a Konnectivity server and an agent on this machine, and measures them in these scenarios:

  stream   throughput of one stream in each direction
  bulk     throughput of 100 streams, and duration of small requests at the same time. Half of
           the streams send data to the agent, the other half send data from the agent
  stalled  the same as bulk, with one more stream that the client does not read
  idle     memory of idle streams
  dial     duration of a dial

For comparison, stream, bulk and dial also measure connections without Konnectivity: direct
connections, connections through two relays, and connections through two relays with TLS between them.

With -reference, the command also measures the programs proxy-server and proxy-agent of the reference
implementation (kubernetes-sigs/apiserver-network-proxy). Each measurement uses new processes. The report
contains the median of all rounds. "stopped" means that a tunnel no longer transferred data in one direction.

The command dials the reference proxy-server as kube-apiserver does, with one connection for each stream. It
dials the server of Trellis as Trellis does. In the mode GRPC this is one connection for all streams. The
machine should be idle.

flags:
`

// targetCommand is the first argument with which the program runs as the target of the measurements.
const targetCommand = "target"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) == 3 && os.Args[1] == targetCommand {
		return runTarget(os.Args[2], os.Stdin)
	}
	o := options{Progress: os.Stderr}
	trellis := flag.String("trellis", "../../bin/trellis", "path of trellis")
	protocols := flag.String("protocol", grpcMode+","+connectMode, "protocols to measure, separated by commas")
	selected := flag.String("scenario", strings.Join(scenarioNames(), ","), "scenarios to measure, separated by commas")
	flag.StringVar(&o.Reference, "reference", "", "folder that contains proxy-server and proxy-agent to compare with")
	flag.IntVar(&o.Rounds, "rounds", 3, "number of measurements of each scenario")
	flag.DurationVar(&o.Window, "window", 5*time.Second, "duration of a measurement")
	flag.IntVar(&o.Idle, "idle", 10000, "number of streams in the scenario idle")
	asJSON := flag.Bool("json", false, "print the report as JSON, with the numbers of each round")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), helpText)
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: run konnectivity-bench -help", flag.Arg(0))
	}
	own, err := os.Executable()
	if err != nil {
		return err
	}
	o.Self = []string{own, targetCommand}
	o.Protocols, o.Scenarios = strings.Split(*protocols, ","), strings.Split(*selected, ",")
	o.Server, o.Agent = []string{*trellis, "konnectivity", "server"}, []string{*trellis, "konnectivity", "agent"}
	klog.SetLogger(logr.Discard()) // the client logs the end of each connection
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	report, err := runBenchmark(ctx, o)
	if err != nil {
		return err
	}
	if !*asJSON {
		return report.table(os.Stdout)
	}
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(report)
}
