package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/trellis-k8s/trellis/cluster/internal/node"
	"github.com/trellis-k8s/trellis/cluster/internal/runtime"
)

// nodeFlags holds the flags that the commands up and node share.
type nodeFlags struct {
	dir             string
	images          []string
	imageFiles      []string
	network         string
	podCIDR         string
	endpoint        string
	maxPIDs         int64
	streamsByMethod bool
	allowPrivileged bool
}

// bind adds the flags to groups.
func (n *nodeFlags) bind(groups *cliflag.NamedFlagSets) {
	images := groups.FlagSet("images")
	images.StringArrayVar(&n.images, "image", nil, "program or folder of this machine for an image, as `NAME=PATH`, "+
		"for example gcr.io/my/app:1.0=./bin/app. * in NAME matches any characters, and * in PATH repeats them. "+
		"Can be repeated; the first match wins")
	images.StringArrayVar(&n.imageFiles, "images", nil, "file with one NAME=PATH per line; can be repeated")

	flags := groups.FlagSet("nodes")
	flags.StringVar(&n.dir, "root-dir", ".trellis-cluster",
		"folder of all state of the nodes; its path must be short, because it contains sockets")
	flags.StringVar(&n.network, "network", "",
		"network of Pods: bridge, a separate network that requires root; or host, "+
			"the network of the node (empty means bridge if possible)")
	flags.StringVar(&n.podCIDR, "pod-cidr", "10.85.0.0/16",
		"address range of Pods; the bridge of each node uses a free /24 of it")
	flags.Int64Var(&n.maxPIDs, "pod-max-pids", 4096,
		"maximum number of processes and threads of a container; requires cgroups (0 means no limit)")
	flags.BoolVar(&n.streamsByMethod, "authorize-streams-by-method", false,
		"authorization of the kubelet's exec, run, attach and portForward by the HTTP method, as upstream's kubelet "+
			"does: "+
			"get on nodes/proxy is enough for a WebSocket (false means create on nodes/proxy is required)")
	flags.BoolVar(&n.allowPrivileged, "allow-privileged", false,
		"execution of privileged containers (false means that their Pods do not start, and an Event names this flag)")
	flags.StringVar(&n.endpoint, "container-runtime-endpoint", "",
		"socket of a container runtime, such as containerd or CRI-O (empty means the process runtime)")
}

// args returns the flags for another process, without --root-dir.
func (n *nodeFlags) args() []string {
	args := []string{
		"--network=" + n.network, "--pod-cidr=" + n.podCIDR, "--container-runtime-endpoint=" + n.endpoint,
		fmt.Sprintf("--pod-max-pids=%d", n.maxPIDs), fmt.Sprintf("--authorize-streams-by-method=%t", n.streamsByMethod),
		fmt.Sprintf("--allow-privileged=%t", n.allowPrivileged),
	}
	for _, i := range n.images {
		args = append(args, "--image="+i)
	}
	for _, i := range n.imageFiles {
		args = append(args, "--images="+i)
	}
	return args
}

// nodeCommand holds the flags of the command node.
type nodeCommand struct {
	nodeFlags
	node node.Options
}

func newNode() *cobra.Command {
	var k nodeCommand
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run only one node: the kubelet, with processes as containers",
		Long: `Run the kubelet in this process.

A container is a process of this machine in separate namespaces. --image maps an image to a program or folder of this
machine. Containers continue when the node stops. A node that starts again in the same folder manages them again.

A node requires root or user namespaces.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if node.Rootless() {
				return node.Spawn(cmd.Context(), os.Stderr, true, os.Args[1:]...)
			}
			return k.run(cmd.Context())
		},
	}
	var groups cliflag.NamedFlagSets
	flags := groups.FlagSet("node")
	flags.StringVar(&k.node.Kubeconfig, "kubeconfig", "", "kubeconfig of the node, or of a user who may request its "+
		"certificate, such as an administrator (empty means the same file as with up)")
	flags.StringVar(&k.node.Name, "hostname-override", "", "name of the Node (empty means the host name)")
	flags.StringVar(&k.node.StaticPods, "pod-manifest-path", "",
		"folder with manifests of static Pods, which the node runs without the scheduler (empty means none)")
	flags.IPVar(&k.node.Address, "node-ip", nil,
		"address of the node, which must be an address of this machine (empty means the address on the default "+
			"route, or "+
			"the first one that is not loopback)")
	flags.IntVar(&k.node.Port, "port", 10250, "port of the kubelet's API (0 means a free port)")
	flags.StringToStringVar(&k.node.Labels, "node-labels", nil, "labels of a new Node, as `NAME=VALUE,...`")
	k.bind(&groups)
	groups.FlagSet("logs").AddFlagSet(addLogging(cmd))
	groupFlags(cmd, &groups)
	return cmd
}

// run runs the node until ctx ends.
func (k *nodeCommand) run(ctx context.Context) error {
	o := k.node
	o.Endpoint, o.StreamsByMethod, o.AllowPrivileged = k.endpoint, k.streamsByMethod, k.allowPrivileged
	if o.Kubeconfig == "" {
		o.Kubeconfig = defaultKubeconfig()
	}
	o.Root = filepath.Join(k.dir, "kubelet")
	if o.Endpoint != "" {
		return node.Run(ctx, o)
	}
	r, err := k.openRuntime(&o)
	if err != nil {
		return fmt.Errorf("runtime: %w", err)
	}
	defer r.Close(ctx)
	o.RelayDevice, o.NonRootAnnotation = r.Bridge(), runtime.NonRootAnnotation
	if o.KubernetesService, err = node.ServerAddress(o.Kubeconfig); err != nil {
		return err
	}
	return node.Run(ctx, o)
}

// openRuntime opens the process runtime of the node, and sets the fields Runtime, Images and Address of o.
func (k *nodeCommand) openRuntime(o *node.Options) (*runtime.Runtime, error) {
	root := filepath.Join(k.dir, "runtime")
	images, err := runtime.NewImages(root, k.images...)
	if err != nil {
		return nil, err
	}
	for _, file := range k.imageFiles {
		if err := images.AddFile(file); err != nil {
			return nil, err
		}
	}
	pods, err := netip.ParsePrefix(k.podCIDR)
	if err != nil {
		return nil, fmt.Errorf("--pod-cidr: %w", err)
	}
	if o.Address == nil {
		if o.Address, err = node.GlobalAddress(); err != nil {
			return nil, err
		}
	}
	ip, _ := netip.AddrFromSlice(o.Address)
	r, err := runtime.New(runtime.Options{
		Root: root, Images: images, Network: runtime.Network(k.network), PodCIDR: pods, NodeIP: ip.Unmap(),
		PIDs: k.maxPIDs,
	})
	o.Runtime, o.Images = r, images
	return r, err
}
