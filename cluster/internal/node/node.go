// Package node runs the kubelet of k8s.io/kubernetes in this process. The container runtime is a Go value or listens
// on a CRI socket. The package connects to the API server of a cluster. It must not import a runtime or other parts of
// a cluster.
package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/clientcmd"
	internalapi "k8s.io/cri-api/pkg/apis"
	kubeletapp "k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/pkg/features"

	"github.com/trellis-k8s/trellis/internal/ownership"
)

// Options configures a node.
type Options struct {
	// Kubeconfig is the kubeconfig of the node, or of a user that may request a certificate for the node. If this user
	// may also approve the request, the node approves it. Otherwise the node waits until another user approves it.
	Kubeconfig string
	// Name is the name of the Node. "" means the name of the host.
	Name string
	// Root is the folder for the node's state. A node continues with the state of an earlier node in the same folder.
	Root string
	// StaticPods is a folder with manifests of static Pods. "" means no static Pods.
	StaticPods string
	// Address is the address of the node. It must be an address of this host, but no loopback address. nil means the
	// result of GlobalAddress.
	Address net.IP
	// Port is the port of the kubelet's API. 0 means a free port.
	Port int
	// If StreamsByMethod is true, the kubelet authorizes commands in containers and connections to containers by the
	// HTTP method, as upstream does. If it is false, they require the verb create on nodes/proxy.
	StreamsByMethod bool
	// AllowPrivileged permits privileged containers.
	AllowPrivileged bool
	// Labels are the labels of the Node when it is created.
	Labels map[string]string

	// Runtime and Images are the container runtime. If one of them is nil, Endpoint is the CRI socket of the runtime.
	Runtime  internalapi.RuntimeService
	Images   internalapi.ImageManagerService
	Endpoint string
	// KubernetesService is the address of the API server for Pods on nodes without kube-proxy. The Pods get it in
	// KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT. "" means that these variables have the values of the
	// kubelet.
	KubernetesService string
	// NonRootAnnotation is the name of an annotation that containers without runAsUser get. Its value is true if
	// runAsNonRoot is true, otherwise false. The runtime selects the user by this value. "" means no annotation.
	NonRootAnnotation string
	// RelayDevice is a network device of this host. The node adds the address of the Service `kubernetes` to the
	// device. It forwards connections to this address to the API server. KubernetesService then applies only to Pods
	// in the host's network. "" means that the node does not forward connections.
	RelayDevice string
}

// runCalled is set by the first Run. The kubelet has global state, such as metrics and feature gates, so a process can
// run only one kubelet.
var runCalled atomic.Bool

// Run runs a node until ctx ends. After that the process should exit, because parts of the kubelet end only with the
// process. The Pods continue, and the next Run in the same folder adopts them.
func Run(ctx context.Context, o Options) error {
	if runCalled.Swap(true) {
		return errors.New("node: a process can run only one node: start another process")
	}
	if err := errors.Join(checkMounts(), o.complete()); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	client, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return fmt.Errorf("node: kubeconfig: %w", err)
	}
	// The runtime reports container statistics, because there may be no cgroups. It also reports the end of a
	// container.
	gates := map[string]bool{string(features.PodAndContainerStatsFromCRI): true, string(features.EventedPLEG): true}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
		return fmt.Errorf("node: feature gates: %w", err)
	}
	settings, err := o.kubeletServer(client)
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	nodeClient, err := nodeClientConfig(ctx, client, o.Name, settings.CertDirectory, o.Address)
	if err != nil {
		return fmt.Errorf("node %s: %w", o.Name, err)
	}
	if err := writeClientCA(ctx, client, settings.Authentication.X509.ClientCAFile); err != nil {
		return fmt.Errorf("node %s: %w", o.Name, err)
	}
	if o.RelayDevice != "" {
		if err := relayService(ctx, client, o.RelayDevice); err != nil {
			return fmt.Errorf("node %s: %w", o.Name, err)
		}
	}
	deps, err := o.dependencies(ctx, settings, nodeClient)
	if err != nil {
		return fmt.Errorf("node %s: %w", o.Name, err)
	}
	if err := kubeletapp.RunKubelet(ctx, settings, deps); err != nil {
		return fmt.Errorf("node %s: %w", o.Name, err)
	}
	<-ctx.Done()
	return nil
}

// maxRootLength is the maximum length of Options.Root in bytes. The folder contains sockets of the kubelet, and the
// path of a socket has at most 107 bytes.
const maxRootLength = 107 - len("/pod-resources/kubelet.sock")

// complete sets the defaults of the options and creates the folders.
func (o *Options) complete() (err error) {
	if (o.Runtime == nil || o.Images == nil) && o.Endpoint == "" {
		return errors.New("no container runtime: set Runtime and Images, or Endpoint")
	}
	if o.Root, err = filepath.Abs(o.Root); err != nil {
		return err
	}
	if len(o.Root) > maxRootLength {
		return fmt.Errorf("the path %s is too long for the kubelet's sockets: shorten it by %d bytes",
			o.Root, len(o.Root)-maxRootLength)
	}
	for _, dir := range []string{o.Root, o.StaticPods} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			return err
		}
		if _, err := ownership.CheckDirectory(dir); err != nil {
			return err
		}
	}
	if o.Address == nil {
		if o.Address, err = GlobalAddress(); err != nil {
			return err
		}
	}
	if o.Port == 0 {
		o.Port, err = freePort()
	}
	if o.Name == "" && err == nil {
		o.Name, err = os.Hostname()
	}
	return err
}
