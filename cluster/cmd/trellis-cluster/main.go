// Command trellis-cluster is what a small cluster has beside its API server: controllers, a scheduler and nodes. Each is upstream's,
// and a client of any API server. Called as kube-scheduler the program is that.
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
	if err := descriptors.Keep(); err != nil { // what a shell or a supervisor left open is for none of its children
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	setVersion()
	cobra.EnableTraverseRunHooks = true // the root's sets logging up, those of the parts their features
	cmd := command(os.Args[0])
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	cmd.SetContext(ctx)
	os.Exit(cli.Run(cmd))
}

// command is the one that a program of this name has.
func command(program string) *cobra.Command {
	if filepath.Base(program) == scheduler.Name {
		return scheduler.Command()
	}
	root := &cobra.Command{
		Use:   "trellis-cluster",
		Short: "What a small cluster has beside its API server",
		Long: `The controllers, the scheduler, the kubelet and kube-proxy of Kubernetes in one program, as clients of any API server.

With a server in this folder, from a second terminal:

  trellis-cluster up --kubeconfig .trellis/admin.kubeconfig

Called as kube-scheduler, by a link or as a file of that name, it is the scheduler.`,
	}
	root.AddCommand(newUp(), newControllers(), newScheduler(), newProxy(), newNode())
	return root
}
