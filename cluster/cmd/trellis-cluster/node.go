package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trellis-k8s/trellis/cluster/internal/node"
	"github.com/trellis-k8s/trellis/cluster/internal/runtime"
)

// nodeFlags is what nodes of this machine have in common.
type nodeFlags struct {
	dir        string
	images     []string
	imageFiles []string
	network    string
	podCIDR    string
	endpoint   string
	maxPIDs  int64
	streamsByMethod   bool
	allowPrivileged bool
}

func (m *nodeFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&m.dir, "root-dir", ".trellis-cluster", "folder of what is kept; its path has to be short, as there are sockets in it")
	flags.StringArrayVar(&m.images, "image", nil, "NAME=PATH: the program or folder of this machine that stands for an image, as gcr.io/my/app:1.0=./bin/app. A * stands for any letters, also in the path. May be repeated; what fits first counts")
	flags.StringArrayVar(&m.imageFiles, "images", nil, "file with such lines; may be repeated")
	flags.StringVar(&m.network, "network", "", "where Pods have their addresses: bridge, a network of their own, which takes root; host, that of the node. By default bridge where that is possible")
	flags.StringVar(&m.podCIDR, "pod-cidr", "10.85.0.0/16", "range of which a node's bridge has a free /24")
	flags.Int64Var(&m.maxPIDs, "pod-max-pids", 4096, "how many processes and threads a container may have, where there are cgroups; 0 is no limit")
	flags.BoolVar(&m.streamsByMethod, "authorize-streams-by-method", false, "authorization of the kubelet's exec, run, attach and portForward by the HTTP method, as upstream's kubelet does: get on nodes/proxy is enough for a WebSocket (false: create on nodes/proxy is required)")
	flags.BoolVar(&m.allowPrivileged, "allow-privileged", false, "execution of privileged containers (false: an Event of the Pod names this flag)")
	flags.StringVar(&m.endpoint, "container-runtime-endpoint", "", "socket of a container runtime (containerd, CRI-O) in place of the process runtime")
}

// args are these flags, for another process.
func (m *nodeFlags) args() []string {
	args := []string{"--network=" + m.network, "--pod-cidr=" + m.podCIDR, "--container-runtime-endpoint=" + m.endpoint, fmt.Sprintf("--pod-max-pids=%d", m.maxPIDs),
		fmt.Sprintf("--authorize-streams-by-method=%t", m.streamsByMethod), fmt.Sprintf("--allow-privileged=%t", m.allowPrivileged)}
	for _, i := range m.images {
		args = append(args, "--image="+i)
	}
	for _, i := range m.imageFiles {
		args = append(args, "--images="+i)
	}
	return args
}

// nodeCommand is the command that is one node.
type nodeCommand struct {
	nodeFlags
	node node.Options
}

func newNode() *cobra.Command {
	var k nodeCommand
	cmd := &cobra.Command{
		Use:   "node",
		Short: "A node alone: the kubelet, over processes in place of images",
		Long: `The kubelet in this process. A container is a process of this machine, in namespaces of its own; which program or folder stands
for an image, --image says. Containers go on when the node ends, and are taken up again when it starts in the same folder.

It takes root, or user namespaces.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if node.Rootless() {
				return node.Spawn(cmd.Context(), os.Stderr, true, os.Args[1:]...)
			}
			return k.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	k.addFlags(flags)
	flags.StringVar(&k.node.Kubeconfig, "kubeconfig", "", "kubeconfig of the node, or of somebody who may have a certificate made for it, as an administrator; by default as with up")
	flags.StringVar(&k.node.Name, "hostname-override", "", "name of the Node; by default this host's")
	flags.StringVar(&k.node.StaticPods, "pod-manifest-path", "", "folder with manifests of Pods that run whatever the API server says")
	flags.IPVar(&k.node.Address, "node-ip", nil, "address of the node, one of this host's; by default the first that is not loopback")
	flags.IntVar(&k.node.Port, "port", 10250, "port of the kubelet's API; 0 is a free one")
	flags.StringToStringVar(&k.node.Labels, "node-labels", nil, "labels that the Node gets when it is made: NAME=VALUE,…")
	addLogging(cmd)
	return cmd
}

// run is the node until ctx ends.
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

// openRuntime opens the process runtime for a node.
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
	r, err := runtime.New(runtime.Options{Root: root, Images: images, Network: runtime.Network(k.network), PodCIDR: pods, NodeIP: ip.Unmap(), PIDs: k.maxPIDs})
	o.Runtime, o.Images = r, images
	return r, err
}
