// Package node is the kubelet of k8s.io/kubernetes in this process, over a container runtime that is a Go value or answers on a
// CRI socket. It knows no runtime, and no other part of a cluster than its API server.
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

// Options is what a node is made of.
type Options struct {
	// Kubeconfig names the API server, and who starts the node: the node itself, or somebody who may have a certificate made
	// for it. He who may approve that has it approved; else it waits for somebody who does.
	Kubeconfig string
	// Name of the Node; "" is the host's.
	Name string
	// Root is the folder of all that the node keeps: what is in it when it starts is taken up again.
	Root string
	// StaticPods is a folder of manifests of Pods that run whatever the API server says; "" is none.
	StaticPods string
	// Address is the node's: one of this host's that is not loopback. nil is the first of these.
	Address net.IP
	// Port is where the kubelet's API is served; 0 is a free one.
	Port int
	// StreamsByMethod has the kubelet authorize commands and connections by the HTTP method, as upstream does. Otherwise they need
	// create on nodes/proxy.
	StreamsByMethod bool
	// AllowPrivileged has the node run privileged containers.
	AllowPrivileged bool
	// Labels are those that the Node gets when it is made.
	Labels map[string]string

	// Runtime and Images run the containers; without them Endpoint does, the socket of a runtime that speaks CRI.
	Runtime  internalapi.RuntimeService
	Images   internalapi.ImageManagerService
	Endpoint string
	// KubernetesService is where Pods find the API server, in KUBERNETES_SERVICE_HOST and _PORT, if nothing here makes the
	// addresses of Services answer; "" leaves these as they are.
	KubernetesService string
	// NonRootAnnotation is the annotation of a container whose Pod names no user: true if the Pod has runAsNonRoot, else false. The
	// runtime then chooses the user. "" is none.
	NonRootAnnotation string
	// RelayDevice is a device of this host that gets the address of the Service `kubernetes`, and answers there; "" is none. Then
	// KubernetesService is for Pods of the host's network alone.
	RelayDevice string
}

// started is set by the first Run: the kubelet's metrics, feature gates and much else are one for the process, and so is it.
var started atomic.Bool

// Run is a node until ctx ends. Then the process should end as well: the kubelet has parts that only end with it. Its Pods go
// on; the next Run in the same folder takes them up.
func Run(ctx context.Context, o Options) error {
	if started.Swap(true) {
		return errors.New("node: a process can be one node only: start another one")
	}
	if err := errors.Join(checkMounts(), o.complete()); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	client, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return fmt.Errorf("node: kubeconfig: %w", err)
	}
	// Container statistics are the runtime's, not those of cgroups that it may not have; that a container has ended it says at once.
	gates := map[string]bool{string(features.PodAndContainerStatsFromCRI): true, string(features.EventedPLEG): true}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
		return fmt.Errorf("node: feature gates: %w", err)
	}
	settings, err := o.settings(client)
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	own, err := identify(ctx, client, o.Name, settings.CertDirectory, o.Address)
	if err != nil {
		return fmt.Errorf("node %s: %w", o.Name, err)
	}
	if err := trustClients(ctx, client, settings.Authentication.X509.ClientCAFile); err != nil {
		return fmt.Errorf("node %s: %w", o.Name, err)
	}
	if o.RelayDevice != "" {
		if err := relayService(ctx, client, o.RelayDevice); err != nil {
			return fmt.Errorf("node %s: %w", o.Name, err)
		}
	}
	parts, err := o.parts(ctx, settings, own)
	if err != nil {
		return fmt.Errorf("node %s: %w", o.Name, err)
	}
	if err := kubeletapp.RunKubelet(ctx, settings, parts); err != nil {
		return fmt.Errorf("node %s: %w", o.Name, err)
	}
	<-ctx.Done()
	return nil
}

// maxRoot is how long the path of the folder may be: the kubelet has sockets in it, whose paths may have 107 bytes.
const maxRoot = 107 - len("/pod-resources/kubelet.sock")

// complete fills in what may be left out, and makes the folders.
func (o *Options) complete() (err error) {
	if (o.Runtime == nil || o.Images == nil) && o.Endpoint == "" {
		return errors.New("there is no container runtime")
	}
	if o.Root, err = filepath.Abs(o.Root); err != nil {
		return err
	}
	if len(o.Root) > maxRoot {
		return fmt.Errorf("the path of %s is too long: the kubelet's sockets in it can have %d bytes less", o.Root, len(o.Root)-maxRoot)
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
		if _, err := ownership.Folder(dir); err != nil {
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
