package main

import (
	"context"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/cluster/internal/node"
	"github.com/trellis-k8s/trellis/cluster/internal/proxy"
)

func newProxy() *cobra.Command {
	cmd := proxy.Command()
	cmd.Use, cmd.Short = "proxy", "Run only kube-proxy, with its flags"
	return cmd
}

// runProxy runs kube-proxy until ctx ends. kube-proxy uses the name of the first node of this machine. If this machine
// has no address for NodePorts, runProxy logs the reason and returns nil.
func (u *upCommand) runProxy(ctx context.Context) error {
	client, err := clientcmd.BuildConfigFromFlags("", u.kubeconfig)
	if err != nil {
		return err
	}
	client.QPS, client.Burst = u.qps, int(u.burst)
	address, err := node.GlobalAddress()
	if err != nil {
		klog.FromContext(ctx).Error(err, "kube-proxy does not run: this machine has no address for NodePorts")
		return nil
	}
	return proxy.Run(ctx, proxy.Options{Client: client, Node: nodeName(0), Address: address, PodCIDR: u.podCIDR})
}
