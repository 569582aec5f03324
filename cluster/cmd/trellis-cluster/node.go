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

// bind adds the flags to the flag sets in groups.
func (n *nodeFlags) bind(groups *cliflag.NamedFlagSets) {
	images := groups.FlagSet("images")
	images.StringArrayVar(&n.images, "image", nil, "mapping of an image to a program or folder of this machine, as "+
		"`NAME=PATH`, for example gcr.io/my/app:1.0=./bin/app. A * in NAME matches any characters, and a * in PATH is "+
		"replaced by them. Can be repeated. The first mapping that matches an image is used")
	images.StringArrayVar(&n.imageFiles, "images", nil, "file with mappings of images, one NAME=PATH per line. "+
		"Can be repeated")

	flags := groups.FlagSet("nodes")
	flags.StringVar(&n.dir, "root-dir", ".trellis-cluster",
		"folder for the state of the nodes. Its path must be short, because the folder contains sockets")
	flags.StringVar(&n.network, "network", "",
		"network of Pods. With bridge, each Pod has its own network and address, which requires root. "+
			"With host, Pods use the network of the node (empty means bridge if possible, otherwise host)")
	flags.StringVar(&n.podCIDR, "pod-cidr", "10.85.0.0/16",
		"address range of Pods. The bridge of each node uses a free /24 range in it")
	flags.Int64Var(&n.maxPIDs, "pod-max-pids", 4096,
		"maximum number of processes and threads of a container (0 means no limit). The limit requires cgroups")
	flags.BoolVar(&n.streamsByMethod, "authorize-streams-by-method", false,
		"authorize exec, run, attach and portForward requests to the kubelet by their HTTP method, as upstream does. "+
			"Then a WebSocket request requires only the verb get on nodes/proxy (false means that all these requests "+
			"require the verb create)")
	flags.BoolVar(&n.allowPrivileged, "allow-privileged", false,
		"permit privileged containers (false means that Pods with such containers do not start. "+
			"Each of them then gets an Event that names this flag)")
	flags.StringVar(&n.endpoint, "container-runtime-endpoint", "",
		"CRI socket of a container runtime, such as containerd or CRI-O "+
			"(empty means that the node itself runs each container as a process)")
}

// args returns the arguments that pass the flags to a child process. They do not include --root-dir.
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
		Short: "Run one node (a kubelet) without the other parts",
		Long: `Run the kubelet in this process.

A container is a process of this machine in separate namespaces. --image maps an image to a program or folder of this
machine. Containers continue when the node stops. When the node starts again with the same --root-dir, it manages them
again.

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
	flags.StringVar(&k.node.Kubeconfig, "kubeconfig", "", "kubeconfig of the node, or of a user who may request the "+
		"node's certificate, such as an administrator. "+emptyKubeconfig)
	flags.StringVar(&k.node.Name, "hostname-override", "", "name of the Node (empty means the host name)")
	flags.StringVar(&k.node.StaticPods, "pod-manifest-path", "",
		"folder with manifests of static Pods, which run without the scheduler (empty means no static Pods)")
	flags.IPVar(&k.node.Address, "node-ip", nil,
		"address of the node. It must be an address of this machine (empty means the address on the default route, "+
			"or else the first address that is not loopback)")
	flags.IntVar(&k.node.Port, "port", 10250, "port of the kubelet's API (0 means a free port)")
	flags.StringToStringVar(&k.node.Labels, "node-labels", nil, "labels that the Node gets when it is "+
		"created, as `NAME=VALUE,...`")
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

// openRuntime opens the node's own container runtime, and sets the fields Runtime, Images and Address of o.
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
