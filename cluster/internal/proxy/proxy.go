// Package proxy runs upstream's kube-proxy. Its rules in the kernel make the addresses of Services reachable on this
// machine. Other parts of a cluster can run in the same process. The package must not import other packages of this
// module.
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

// Command returns upstream's command of kube-proxy, with nftables as the default mode. No other part of a cluster may
// run in the same process, because the command exits the process when its Node changes.
func Command() *cobra.Command {
	cmd := app.NewProxyCommand()
	mode := cmd.Flags().Lookup("proxy-mode")
	mode.DefValue = string(proxyconfig.ProxyModeNFTables)
	if err := mode.Value.Set(mode.DefValue); err != nil {
		panic(err) // upstream has removed the mode
	}
	cmd.PreRunE = func(*cobra.Command, []string) error { return acquireLock() }
	return cmd
}

// Options holds the settings of a kube-proxy that shares its process with other parts.
type Options struct {
	Client  *rest.Config
	Node    string // name of a Node of this machine
	Address net.IP // address of this machine for NodePorts
	PodCIDR string // address range of the Pods on this machine
}

// Run maintains kube-proxy's rules in the kernel until ctx ends. The rules remain after that. If this machine does not
// support the rules, Run logs the reason and returns nil. While another kube-proxy holds the lock, Run waits.
func Run(ctx context.Context, o Options) error {
	server, err := o.newServer(ctx)
	for errors.Is(err, errLocked) {
		klog.FromContext(ctx).Info("Waiting to start kube-proxy", "reason", err)
		select {
		case <-time.After(lockRetryInterval):
		case <-ctx.Done():
			return nil
		}
		server, err = o.newServer(ctx)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "kube-proxy does not run: cluster IPs of Services are not routed, "+
			"but Pods still reach the API server through KUBERNETES_SERVICE_HOST. kube-proxy requires root, "+
			"nft 1.0.1 or later (the package nftables), and Linux 5.13 or later with nf_tables. "+
			"No other kube-proxy may run on this machine")
		return nil
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	select {
	case err := <-ended:
		return fmt.Errorf("%s: %w", name, err)
	case <-ctx.Done(): // upstream's goroutines run until the process exits
		return nil
	}
}

// lockRetryInterval is the interval between attempts to acquire the lock of the network namespace.
const lockRetryInterval = 5 * time.Second

// newServer returns upstream's server without its NodeManager. The NodeManager waits for a Node, and exits the process
// when the Node changes.
func (o *Options) newServer(ctx context.Context) (_ *app.ProxyServer, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("not root")
	}
	if err := acquireLock(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil { // release the lock, because a kube-proxy with other flags may succeed
			lockFile.Close()
			lockFile = nil
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
	local := proxyutil.NewDetectLocalByCIDR(o.PodCIDR)
	rules, err := nftables.NewProxier(
		ctx, config, corev1.IPv4Protocol, local, o.Node, o.Address, recorder, nil, false)
	if err != nil {
		return nil, err
	}
	return &app.ProxyServer{
		Config: config, Client: client, Proxier: rules, Broadcaster: broadcaster, Recorder: recorder,
		NodeRef: &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: o.Node},
	}, nil
}

// bridgeNetfilter is the file of a sysctl. The value 1 applies netfilter's rules also to packets between ports of a
// bridge.
const bridgeNetfilter = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// config returns upstream's default configuration in the mode nftables. It disables the settings that do not concern
// the rules: the ports for metrics and health, and the OOM score of the process.
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
	// A response between two Pods of the same bridge bypasses the rules and would have the wrong source address. The
	// sysctl applies the rules to such packets. Without the module br_netfilter the sysctl does not exist. The rules
	// then masquerade all connections, so Pods see the address of the bridge in place of the caller's.
	config.Linux.MasqueradeAll = os.WriteFile(bridgeNetfilter, []byte("1"), 0) != nil
	return &config, nil
}

// errLocked is the error of acquireLock when another process holds the lock.
var errLocked = errors.New("another kube-proxy of trellis-cluster runs on this machine")

// lockFile is the open, locked file, or nil. After a successful start the process holds the lock until it exits.
var lockFile *os.File

// acquireLock locks a file for the network namespace of this process. Only one kube-proxy can run in a network
// namespace, because all would write the same table of rules.
func acquireLock() error {
	if lockFile != nil {
		return nil
	}
	var namespace unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &namespace); err != nil {
		return err
	}
	path := fmt.Sprintf("/run/trellis-cluster-kube-proxy-%d.lock", namespace.Ino)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if err == unix.EWOULDBLOCK {
			return errLocked
		}
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	lockFile = f
	return nil
}
