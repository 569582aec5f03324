// Package proxy is upstream's kube-proxy: rules in the kernel by which the addresses of Services answer on this machine. It can run
// beside other parts in one process, and knows nothing of these.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/kubernetes/cmd/kube-proxy/app"
	proxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/apis/config/scheme"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
)

const name = "kube-proxy"

// Command is upstream's, with rules of nftables unless its flags say otherwise. It has the process for itself, which it ends when its
// Node changes.
func Command() *cobra.Command {
	cmd := app.NewProxyCommand()
	mode := cmd.Flags().Lookup("proxy-mode")
	mode.DefValue = string(proxyconfig.ProxyModeNFTables)
	if err := mode.Value.Set(mode.DefValue); err != nil {
		panic(err) // upstream knows it no more
	}
	cmd.PreRunE = func(*cobra.Command, []string) error { return claim() }
	return cmd
}

// Options is what a proxy beside other parts of its process is made of.
type Options struct {
	Client  *rest.Config
	Node    string // the name of one that this machine is
	Address net.IP // this machine's, at which NodePorts answer
	PodCIDR string // where Pods of this machine have their addresses
}

// Run keeps the rules until ctx ends; they stay, as Pods do. Where this machine cannot have them, it says so in the log, and that is
// all.
func Run(ctx context.Context, o Options) error {
	server, err := o.server(ctx)
	for errors.Is(err, errTaken) {
		klog.FromContext(ctx).Info("Waiting to be kube-proxy", "because", err)
		select {
		case <-time.After(retryClaim):
		case <-ctx.Done():
			return nil
		}
		server, err = o.server(ctx)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "No kube-proxy: cluster IPs of Services are not routed; Pods find the API server by KUBERNETES_SERVICE_HOST all the same. "+
			"It takes root, nft 1.0.1 (the package nftables), Linux 5.13 with nf_tables, and no other one on this machine")
		return nil
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	select {
	case err := <-ended:
		return fmt.Errorf("%s: %w", name, err)
	case <-ctx.Done(): // upstream's parts end with the process
		return nil
	}
}

// retryClaim is how often it is tried to be the one kube-proxy of a machine.
const retryClaim = 5 * time.Second

// server is upstream's server without its NodeManager, which waits for a Node and exits the process when that changes.
func (o *Options) server(ctx context.Context) (_ *app.ProxyServer, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("not root")
	}
	if err := claim(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil { // another one, with other flags, may be able to
			claimed.Close()
			claimed = nil
		}
	}()
	client, err := kubernetes.NewForConfig(o.Client)
	if err != nil {
		return nil, err
	}
	config, err := o.config()
	if err != nil {
		return nil, err
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	recorder := broadcaster.NewRecorder(scheme.Scheme, name)
	rules, err := nftables.NewProxier(ctx, config, corev1.IPv4Protocol, proxyutil.NewDetectLocalByCIDR(o.PodCIDR), o.Node, o.Address, recorder, nil, false)
	if err != nil {
		return nil, err
	}
	return &app.ProxyServer{
		Config: config, Client: client, Proxier: rules, Broadcaster: broadcaster, Recorder: recorder,
		NodeRef: &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: o.Node},
	}, nil
}

// bridged says whether the kernel translates also what a bridge passes on.
const bridged = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// config is upstream's by default, without what it would take hold of beside the rules: ports, and what becomes of the process when
// memory is short.
func (o *Options) config() (*proxyconfig.KubeProxyConfiguration, error) {
	var defaults proxyv1alpha1.KubeProxyConfiguration
	scheme.Scheme.Default(&defaults)
	var config proxyconfig.KubeProxyConfiguration
	if err := scheme.Scheme.Convert(&defaults, &config, nil); err != nil {
		return nil, err
	}
	bits := 8 * len(o.Address)
	ports := &net.IPNet{IP: o.Address, Mask: net.CIDRMask(bits, bits)}
	config.Mode, config.NodePortAddresses = proxyconfig.ProxyModeNFTables, []string{ports.String()}
	config.MetricsBindAddress, config.HealthzBindAddress, config.Linux.OOMScoreAdj = "", "", nil
	// What a Pod answers to another one of its bridge does not come by here, and would have the wrong sender, unless the kernel has
	// what bridges pass on go by here, too. Where it cannot (br_netfilter is not there), Pods see the bridge in place of who calls.
	config.Linux.MasqueradeAll = os.WriteFile(bridged, []byte("1"), 0) != nil
	return &config, nil
}

// errTaken says that another process has the claim.
var errTaken = errors.New("another kube-proxy of trellis-cluster runs on this machine")

// claimed is held as long as the process lives, once it is.
var claimed *os.File

// claim sees to it that there is one proxy for a network namespace: its rules are in one place.
func claim() error {
	if claimed != nil {
		return nil
	}
	var space unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &space); err != nil {
		return err
	}
	f, err := os.OpenFile(fmt.Sprintf("/run/trellis-cluster-kube-proxy-%d.lock", space.Ino), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if err == unix.EWOULDBLOCK {
			return errTaken
		}
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	claimed = f
	return nil
}
