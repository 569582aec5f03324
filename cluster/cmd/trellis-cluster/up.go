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
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/trellis-k8s/trellis/cluster/internal/runtime"
)

// emptyKubeconfig is the part of the help that explains the default of --kubeconfig.
const emptyKubeconfig = "Empty means $KUBECONFIG or ~/.kube/config. If that file does not exist, this command uses " +
	"the service account of the Pod in which it runs"

// upCommand holds the flags of the command up.
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
		Short: "Run all parts: controllers, scheduler, nodes and kube-proxy",
		Long: `Run the controllers, the scheduler and the nodes in separate processes, and restart a process that exits.

The controllers and the scheduler use leader election. So this command can also run with --nodes=0 on a second machine,
which takes over if the first one fails.

--image maps an image to a program or folder of this machine. Containers continue when this command stops.

As root, the controllers serve health and metrics on port 10257, and the scheduler on port 10259. If a port is in use,
a free port replaces it. Without root, both ports are disabled. Pods then share the ports of the machine, and a
scheduler in a Pod may need port 10259.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return u.run(cmd.Context())
		},
	}
	var groups cliflag.NamedFlagSets
	flags := groups.FlagSet("cluster")
	flags.StringVar(&u.kubeconfig, "kubeconfig", "", "kubeconfig of an administrator. "+emptyKubeconfig)
	flags.Float32Var(&u.qps, "kube-api-qps", -1,
		"maximum number of requests per second to the API server, for the controllers, the scheduler and kube-proxy "+
			"each (negative means no limit)")
	flags.Int32Var(&u.burst, "kube-api-burst", 0,
		"maximum number of requests in a short burst, which may exceed --kube-api-qps")
	flags.StringArrayVar(&u.controllerArgs, "kube-controller-manager-arg", nil,
		"`FLAG` for the controllers, for example --concurrent-job-syncs=10. Can be repeated")
	flags.StringArrayVar(&u.schedulerArgs, "kube-scheduler-arg", nil, "`FLAG` for the scheduler. Can be repeated")
	flags.IntVar(&u.nodeCount, "nodes", 1, "number of nodes on this machine. Their names are node-1, node-2 "+
		"and so on")
	flags.BoolVar(&u.kubeProxy, "kube-proxy", true,
		"run kube-proxy, which routes the addresses of Services on this machine. "+
			"It requires root, and does not run with --network=host")
	u.bind(&groups)
	u.logging = addLogging(cmd)
	groups.FlagSet("logs").AddFlagSet(u.logging)
	groupFlags(cmd, &groups)
	return cmd
}

// run runs the controllers, the scheduler, the nodes and kube-proxy until ctx ends. It returns an error if one of them
// cannot start.
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

// electedParts returns the controllers and the scheduler. Leader election ensures that only one instance of each is
// active in a cluster.
func (u *upCommand) electedParts() []part {
	args := []string{
		"--kubeconfig=" + u.kubeconfig,
		fmt.Sprintf("--kube-api-qps=%v", u.qps), fmt.Sprintf("--kube-api-burst=%d", u.burst),
	}
	if os.Geteuid() == 0 {
		args = append(args, "--authentication-kubeconfig="+u.kubeconfig, "--authorization-kubeconfig="+u.kubeconfig)
	}
	return []part{
		{
			name: "controllers",
			args: slices.Concat([]string{"controllers"}, args, servingPort(controllersPort), u.controllerArgs),
		},
		{
			name: "scheduler",
			args: slices.Concat([]string{"scheduler"}, args, servingPort(schedulerPort), u.schedulerArgs),
		},
	}
}

// Default ports of health and metrics.
const (
	controllersPort = 10257
	schedulerPort   = 10259
)

// servingPort returns the flag for the port of health and metrics. The parameter standard is the usual port. If that
// port is in use, for example by another cluster on this machine, the flag contains a free port. Without root, the
// flag disables the port.
func servingPort(standard int) []string {
	if os.Geteuid() != 0 {
		return []string{"--secure-port=0"}
	}
	for _, port := range []int{standard, 0} {
		if l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			defer func() { _ = l.Close() }()
			return []string{fmt.Sprintf("--secure-port=%d", l.Addr().(*net.TCPAddr).Port)}
		}
	}
	return nil
}

// defaultKubeconfig returns the path of the kubeconfig that kubectl uses, or "" if the file does not exist.
func defaultKubeconfig() string {
	file := clientcmd.NewDefaultClientConfigLoadingRules().GetDefaultFilename()
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	return file
}
