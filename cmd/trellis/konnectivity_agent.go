package main

import (
	"context"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/internal/konnectivity/agent"
)

func newKonnectivityAgent() *cobra.Command {
	var f agent.Flags
	var logger func() *slog.Logger
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run a Konnectivity agent",
		Long: `Run an agent that connects to Konnectivity servers and dials the destinations that they request. The
servers can be those of Trellis or the proxy-server of the reference implementation
(kubernetes-sigs/apiserver-network-proxy). The flags are those of the reference proxy-agent. If this program
has the name proxy-agent, it runs this command.

The agent finds the servers by the addresses of --proxy-server-host or by the Leases of the servers. If the
servers are behind a load balancer, the agent opens connections until it is connected to each of them. The
servers report their number. On SIGTERM the agent accepts no new connections. It exits after its last
connection has ended, but at the latest after 25 seconds. A second signal ends it immediately.`,
		Example: `  trellis konnectivity agent --proxy-server-host 192.0.2.10 --proxy-server-port 8132 \
    --ca-cert ca.crt --service-account-token-path /var/run/secrets/tokens/konnectivity-agent-token`,
		Args: takes("no arguments", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger()
			if err := f.Complete(); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop)
			defer klog.Flush()
			go releaseMemory(ctx)
			return agent.Run(ctx, f.Config)
		},
	}
	f.AddFlags(cmd.Flags())
	logger = klogFlags(cmd.Flags())
	return cmd
}
