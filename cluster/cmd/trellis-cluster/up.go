package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trellis-k8s/trellis/cluster/internal/runtime"
)

// upCommand are all parts, a process each.
type upCommand struct {
	kubeconfig     string
	qps            float32
	burst          int32
	controllerArgs []string
	schedulerArgs  []string
	nodeCount      int
	kubeProxy      bool
	logging        *pflag.FlagSet
	nodeFlags
}

func newUp() *cobra.Command {
	var u upCommand
	cmd := &cobra.Command{
		Use:   "up",
		Short: "All of it: controllers, scheduler, nodes, addresses of Services",
		Long: `The controllers, the scheduler and nodes, a process each; one that ends is started again. The first two are elected, so another one
may stand by, on another machine, with --nodes=0. Which program or folder of this machine stands for an image, --image says; containers go on when this ends.

As root, they serve health and metrics at ports 10257 and 10259, or at free ones where these are taken. Otherwise they do not, as Pods share the ports of the machine, and
one of them may be a scheduler.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return u.run(cmd.Context())
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
	u.logging = addLogging(cmd)
	return cmd
}

// run keeps the parts until ctx ends, or one cannot begin.
func (u *upCommand) run(ctx context.Context) error {
	if u.kubeconfig == "" {
		u.kubeconfig = defaultKubeconfig()
	}
	running, ctx := errgroup.WithContext(ctx)
	for _, p := range append(u.electedParts(), u.nodeParts()...) {
		u.logging.VisitAll(func(f *pflag.Flag) {
			if f.Changed {
				p.args = slices.Insert(p.args, 1, "--"+f.Name+"="+f.Value.String())
			}
		})
		running.Go(func() error { return p.supervise(ctx) })
	}
	if u.kubeProxy && u.nodeCount > 0 && u.network != string(runtime.HostNetwork) {
		running.Go(func() error { return u.runProxy(ctx) })
	}
	return running.Wait()
}

// electedParts are the parts that act in one place of a cluster.
func (u *upCommand) electedParts() []part {
	args := []string{"--kubeconfig=" + u.kubeconfig, fmt.Sprintf("--kube-api-qps=%v", u.qps), fmt.Sprintf("--kube-api-burst=%d", u.burst)}
	if os.Geteuid() == 0 {
		args = append(args, "--authentication-kubeconfig="+u.kubeconfig, "--authorization-kubeconfig="+u.kubeconfig)
	}
	return []part{
		{name: "controllers", args: slices.Concat([]string{"controllers"}, args, servingPort(controllersPort), u.controllerArgs)},
		{name: "scheduler", args: slices.Concat([]string{"scheduler"}, args, servingPort(schedulerPort), u.schedulerArgs)},
	}
}

// The ports of health and metrics.
const (
	controllersPort = 10257
	schedulerPort   = 10259
)

// servingPort returns the flag for the port of health and metrics: the usual one, or a free one where another cluster of this machine has that.
// Only root serves them.
func servingPort(usual int) []string {
	if os.Geteuid() != 0 {
		return []string{"--secure-port=0"}
	}
	for _, port := range []int{usual, 0} {
		if l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			defer func() { _ = l.Close() }()
			return []string{fmt.Sprintf("--secure-port=%d", l.Addr().(*net.TCPAddr).Port)}
		}
	}
	return nil
}

// defaultKubeconfig is the kubeconfig that kubectl would take; "" if there is none.
func defaultKubeconfig() string {
	file := clientcmd.NewDefaultClientConfigLoadingRules().GetDefaultFilename()
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	return file
}
