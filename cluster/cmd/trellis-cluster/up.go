package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/trellis-k8s/trellis/cluster/internal/controllers"
	"github.com/trellis-k8s/trellis/cluster/internal/runtime"
	"github.com/trellis-k8s/trellis/cluster/internal/scheduler"
)

// up are all parts in one process.
type up struct {
	kubeconfig     string
	qps            float32
	burst          int32
	controllerArgs []string
	schedulerArgs  []string
	nodeCount      int
	kubeProxy      bool
	machine
}

func newUp() *cobra.Command {
	var u up
	logging := logs.NewOptions()
	cmd := &cobra.Command{
		Use:   "up",
		Short: "All of it: controllers, scheduler, nodes, addresses of Services",
		Long: `The controllers, the scheduler and kube-proxy in one process, and a process for each node. The first two are elected, so another one
may stand by. Which program or folder of this machine stands for an image, --image says; containers go on when this ends.

As root, they serve health and metrics at ports 10257 and 10259. Otherwise they do not, as Pods share the ports of the machine, and
one of them may be a scheduler.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := logsapi.ValidateAndApply(logging, utilfeature.DefaultFeatureGate); err != nil {
				return fmt.Errorf("logging: %w", err)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return u.run(ctx)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&u.kubeconfig, "kubeconfig", "", "kubeconfig of an administrator; by default $KUBECONFIG or ~/.kube/config, else that of the Pod that this runs in")
	flags.Float32Var(&u.qps, "kube-api-qps", -1, "requests a second that each part may send to the API server; below 0 there is no limit")
	flags.Int32Var(&u.burst, "kube-api-burst", 0, "requests that it may send at once beyond that")
	flags.StringArrayVar(&u.controllerArgs, "kube-controller-manager-arg", nil, "a flag for the controllers, as --kube-controller-manager-arg=--concurrent-job-syncs=10; may be repeated")
	flags.StringArrayVar(&u.schedulerArgs, "kube-scheduler-arg", nil, "a flag for the scheduler; may be repeated")
	flags.IntVar(&u.nodeCount, "nodes", 1, "how many nodes this machine is: node-1 and so on")
	flags.BoolVar(&u.kubeProxy, "kube-proxy", true, "have the addresses of Services answer on this machine; as root, and unless Pods have the host's network")
	u.addFlags(flags)
	logsapi.AddFlags(logging, flags)
	return cmd
}

// run runs the parts until one ends, or ctx does.
func (u *up) run(ctx context.Context) error {
	if u.kubeconfig == "" {
		u.kubeconfig = usual()
	}
	manager, err := controllers.Parse(append(u.args(), u.controllerArgs...))
	if err != nil {
		return err
	}
	scheduler, err := scheduler.Parse(append(u.args(), u.schedulerArgs...))
	if err != nil {
		return err
	}
	if err := controllers.SetFeatures(); err != nil {
		return err
	}
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return manager.Run(ctx) })
	parts.Go(func() error { return scheduler.Run(ctx) })
	u.nodes(ctx, parts, u.nodeCount, u.kubeconfig)
	if u.kubeProxy && u.nodeCount > 0 && u.network != string(runtime.HostNetwork) {
		parts.Go(func() error { return u.proxy(ctx) })
	}
	return parts.Wait()
}

// args are the flags that all parts have.
func (u *up) args() []string {
	args := []string{"--kubeconfig=" + u.kubeconfig, fmt.Sprintf("--kube-api-qps=%v", u.qps), fmt.Sprintf("--kube-api-burst=%d", u.burst)}
	if os.Geteuid() != 0 {
		return append(args, "--secure-port=0")
	}
	return append(args, "--authentication-kubeconfig="+u.kubeconfig, "--authorization-kubeconfig="+u.kubeconfig)
}

// usual is the kubeconfig that kubectl would take; "" if there is none.
func usual() string {
	file := clientcmd.NewDefaultClientConfigLoadingRules().GetDefaultFilename()
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	return file
}
