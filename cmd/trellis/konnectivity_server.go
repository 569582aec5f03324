package main

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

func newKonnectivityServer() *cobra.Command {
	var f server.Flags
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a Konnectivity server",
		Long: `Run a Konnectivity server. The API server connects to it through a Unix socket or TLS, and agents in the
cluster connect with TLS. An agent dials the destinations that the API server requests.

The command can replace the proxy-server of the reference implementation
(kubernetes-sigs/apiserver-network-proxy). If this program has the name proxy-server, it runs this command. The
flags have the same names and defaults, except the defaults of --keepalive-time, --frontend-keepalive-time and -v.`,
		Example: `  trellis konnectivity server \
    --uds-name /etc/kubernetes/konnectivity-server/konnectivity-server.socket --server-port 0 \
    --cluster-cert apiserver.crt --cluster-key apiserver.key \
    --agent-namespace kube-system --agent-service-account konnectivity-agent \
    --kubeconfig konnectivity-server.conf --authentication-audience system:konnectivity-server`,
		Args: takes("no arguments", 0, 0),
	}
	f.AddFlags(cmd.Flags())
	logger := klogFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f.Logger = logger()
		if err := f.Complete(); err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop) // a second signal ends the program immediately
		go releaseMemory(ctx)
		return server.Run(ctx, f.Config)
	}
	return cmd
}
