// Package runtime implements the process runtime, a container runtime (CRI) for the kubelet. An image is a program or a
// folder of this machine. A container is a process in separate namespaces. The package uses CRI and the kernel. It must
// not import clients of the API server.
package runtime

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/trellis-k8s/trellis/internal/ownership"
)

// Options configures a Runtime.
type Options struct {
	Root   string // folder for the state of Pods and containers, which continue when the runtime ends
	Images *Images

	Network Network
	PodCIDR netip.Prefix // the bridge uses a free /24 range in it; the zero value means 10.85.0.0/16
	NodeIP  netip.Addr   // address of Pods without a separate network

	CgroupParent string // path of the parent of all cgroups; "" means /trellis
	PIDs         int64  // maximum number of processes of a container; 0 means no limit
	Log          *slog.Logger
}

// Network selects the network of the Pods.
type Network string

// Networks of the Pods.
const (
	AnyNetwork    Network = ""       // a bridge if it can be created, otherwise the node's address
	BridgeNetwork Network = "bridge" // requires root
	HostNetwork   Network = "host"   // all Pods share the node's address
)

const (
	name    = "trellis"
	version = "1.0.0"
)

// Runtime is a container runtime.
type Runtime struct {
	Options
	bridge  *bridge // nil means that Pods share the node's address
	streams *streams
	events  eventBroadcaster
	lock    *os.File

	mu         sync.Mutex
	sandboxes  map[string]*sandbox
	containers map[string]*container
}

var _ cri.RuntimeService = &Runtime{}

// New opens the runtime in o.Root and adopts the containers that run there. It returns an error if another runtime has
// the folder open.
func New(o Options) (*Runtime, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.CgroupParent == "" {
		o.CgroupParent = "/" + name
	}
	if !o.PodCIDR.IsValid() {
		o.PodCIDR = netip.MustParsePrefix("10.85.0.0/16")
	}
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return nil, err
	}
	o.Root = root
	r := &Runtime{Options: o, sandboxes: map[string]*sandbox{}, containers: map[string]*container{}}
	for _, folder := range []string{r.sandboxFolder(""), r.containerFolder("")} {
		if err := os.MkdirAll(folder, 0o711); err != nil {
			return nil, err
		}
	}
	if _, err := ownership.CheckDirectories(root, "sandboxes", "containers"); err != nil {
		return nil, err
	}
	if r.lock, err = os.OpenFile(filepath.Join(root, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(r.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		r.lock.Close()
		return nil, fmt.Errorf("another node runs in %s: %w", root, err)
	}
	if err := r.open(); err != nil {
		return nil, errors.Join(err, r.lock.Close())
	}
	return r, nil
}

// open opens the network, the stored state and the streaming server.
func (r *Runtime) open() error {
	if r.Network != HostNetwork {
		b, err := openBridge(r.Root, r.PodCIDR)
		if err != nil && r.Network == BridgeNetwork {
			return err
		}
		if err != nil {
			r.Log.Info("Pods share the node's address", "reason", err)
		}
		r.bridge = b
	}
	if r.bridge == nil && !r.NodeIP.IsValid() { // the kubelet would recreate a Pod without an address forever
		return errors.New("pods share the node's address, but Options.NodeIP is not set")
	}
	if err := r.load(); err != nil {
		return err
	}
	streams, err := newStreams(r)
	r.streams = streams
	return err
}

// Bridge returns the name of the Pods' bridge, or "" if Pods share the node's address.
func (r *Runtime) Bridge() string {
	if r.bridge == nil {
		return ""
	}
	return r.bridge.Name
}

// Close closes the streaming server and unlocks the folder. Containers continue to run.
func (r *Runtime) Close(context.Context) error {
	return errors.Join(r.streams.close(), r.lock.Close())
}

func (r *Runtime) sandboxFolder(id string) string   { return filepath.Join(r.Root, "sandboxes", id) }
func (r *Runtime) containerFolder(id string) string { return filepath.Join(r.Root, "containers", id) }

func newID() string {
	var b [32]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func notFound(kind, id string) error {
	return status.Errorf(codes.NotFound, "%s %q not found", kind, id)
}

// Version returns the version of the runtime.
func (r *Runtime) Version(context.Context, string) (*v1.VersionResponse, error) {
	return &v1.VersionResponse{Version: "0.1.0", RuntimeName: name, RuntimeVersion: version,
		RuntimeApiVersion: "v1"}, nil
}

// Status reports that the runtime and its network are ready. New returns a Runtime only if both are ready.
func (r *Runtime) Status(context.Context, bool) (*v1.StatusResponse, error) {
	conditions := []*v1.RuntimeCondition{{Type: v1.RuntimeReady, Status: true}, {Type: v1.NetworkReady, Status: true}}
	return &v1.StatusResponse{
		Status:          &v1.RuntimeStatus{Conditions: conditions},
		RuntimeHandlers: []*v1.RuntimeHandler{{Features: &v1.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}}},
		Features:        &v1.RuntimeFeatures{},
	}, nil
}

// RuntimeConfig reports the cgroup driver: the runtime writes to cgroupfs, without systemd.
func (r *Runtime) RuntimeConfig(context.Context) (*v1.RuntimeConfigResponse, error) {
	return &v1.RuntimeConfigResponse{Linux: &v1.LinuxRuntimeConfiguration{CgroupDriver: v1.CgroupDriver_CGROUPFS}}, nil
}

// UpdateRuntimeConfig ignores the Pod CIDR of the kubelet. The range of the bridge never changes.
func (r *Runtime) UpdateRuntimeConfig(context.Context, *v1.RuntimeConfig) error { return nil }

// UpdatePodSandboxResources does nothing, because only containers have limits.
func (r *Runtime) UpdatePodSandboxResources(
	context.Context, *v1.UpdatePodSandboxResourcesRequest,
) (*v1.UpdatePodSandboxResourcesResponse, error) {
	return &v1.UpdatePodSandboxResourcesResponse{}, nil
}

var errNoCheckpoint = status.Error(codes.Unimplemented, "the process runtime does not support checkpoints")

// CheckpointContainer returns an Unimplemented error.
func (r *Runtime) CheckpointContainer(context.Context, *v1.CheckpointContainerRequest) error {
	return errNoCheckpoint
}

// CheckpointPod returns an Unimplemented error.
func (r *Runtime) CheckpointPod(context.Context, *v1.CheckpointPodRequest) error {
	return errNoCheckpoint
}

// RestorePod returns an Unimplemented error.
func (r *Runtime) RestorePod(context.Context, *v1.RestorePodRequest) (*v1.RestorePodResponse, error) {
	return nil, errNoCheckpoint
}
