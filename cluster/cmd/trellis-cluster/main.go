// Command trellis-cluster runs the controllers, the scheduler, the kubelet and kube-proxy of Kubernetes as clients of
// any API server. If the program is started under the name kube-scheduler, it behaves like kube-scheduler.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"

	"github.com/trellis-k8s/trellis/cluster/internal/descriptors"
	"github.com/trellis-k8s/trellis/cluster/internal/scheduler"
)

func main() {
	// Child processes must not inherit the files that a shell or a supervisor left open.
	if err := descriptors.CloseAllOnExec(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	setVersion()
	// Run the hooks of the root command and also the hooks of upstream's commands. The root command initializes
	// logging, and upstream's commands set feature gates.
	cobra.EnableTraverseRunHooks = true
	cmd := command(os.Args[0])
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	cmd.SetContext(ctx)
	os.Exit(cli.Run(cmd))
}

// command returns the root command of a program with the given file name.
func command(program string) *cobra.Command {
	if filepath.Base(program) == scheduler.Name {
		return scheduler.Command()
	}
	root := &cobra.Command{
		Use:   "trellis-cluster",
		Short: "Run controllers, a scheduler and nodes for an API server",
		Long: `Run the controllers, the scheduler, the kubelet and kube-proxy of Kubernetes for any API server.

If the program is started under the name kube-scheduler, for example through a link, it behaves like kube-scheduler.`,
		Example: `  # Run all parts and one node for the server in this folder
  trellis-cluster up --kubeconfig .trellis/admin.kubeconfig --image gcr.io/my/app:1.0=./bin/app`,
	}
	root.AddCommand(newUp(), newControllers(), newScheduler(), newProxy(), newNode())
	return root
}
