// Package runtime is the process runtime: what the kubelet wants of a container runtime (CRI), without images. An
// image is a program or a folder of this machine, a container is a process in namespaces of its own. It knows CRI and
// the kernel, and nothing of the API server.
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

// Options are what a runtime is told.
type Options struct {
	Root   string // its folder, of which nobody else knows; containers outlive the runtime by what lies there
	Images *Images

	Network Network
	PodCIDR netip.Prefix // of which a bridge takes a free /24
	NodeIP  netip.Addr   // what pods without a network of their own have

	CgroupParent string // in each hierarchy
	PIDs         int64  // of a container; 0 is no limit
	Log          *slog.Logger
}

// Network says where pods have their addresses.
type Network string

// A bridge where it can be made, which takes root, or else the node's address; one or the other.
const (
	AnyNetwork    Network = ""
	BridgeNetwork Network = "bridge"
	HostNetwork   Network = "host"
)

const (
	name    = "trellis"
	version = "1.0.0"
)

// Runtime is a container runtime.
type Runtime struct {
	Options
	bridge  *bridge // nil: pods share the node's address
	streams *streams
	events  events
	lock    *os.File

	mu         sync.Mutex
	sandboxes  map[string]*sandbox
	containers map[string]*container
}

var _ cri.RuntimeService = &Runtime{}

// New opens the runtime of a folder, and adopts the containers that run there.
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
	if _, err := ownership.Folders(root, "sandboxes", "containers"); err != nil {
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
	if r.bridge == nil && !r.NodeIP.IsValid() { // a pod without an address is made anew for ever
		return errors.New("pods share the node's address, and nobody said which that is")
	}
	if err := r.load(); err != nil {
		return err
	}
	streams, err := newStreams(r)
	r.streams = streams
	return err
}

// Bridge is the device of the pods' network; "" where they share the node's address.
func (r *Runtime) Bridge() string {
	if r.bridge == nil {
		return ""
	}
	return r.bridge.Name
}

// Close ends what serves this process; containers run on.
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

func missing(what, id string) error {
	return status.Errorf(codes.NotFound, "there is no %s %q", what, id)
}

// Version says what this is.
func (r *Runtime) Version(context.Context, string) (*v1.VersionResponse, error) {
	return &v1.VersionResponse{Version: "0.1.0", RuntimeName: name, RuntimeVersion: version, RuntimeApiVersion: "v1"}, nil
}

// Status says that the runtime is ready: it could not have been made otherwise.
func (r *Runtime) Status(context.Context, bool) (*v1.StatusResponse, error) {
	conditions := []*v1.RuntimeCondition{{Type: v1.RuntimeReady, Status: true}, {Type: v1.NetworkReady, Status: true}}
	return &v1.StatusResponse{
		Status:          &v1.RuntimeStatus{Conditions: conditions},
		RuntimeHandlers: []*v1.RuntimeHandler{{Features: &v1.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}}},
		Features:        &v1.RuntimeFeatures{},
	}, nil
}

// RuntimeConfig says who makes cgroups: not systemd.
func (r *Runtime) RuntimeConfig(context.Context) (*v1.RuntimeConfigResponse, error) {
	return &v1.RuntimeConfigResponse{Linux: &v1.LinuxRuntimeConfiguration{CgroupDriver: v1.CgroupDriver_CGROUPFS}}, nil
}

// UpdateRuntimeConfig is told the node's pod CIDR. The range of this node is known from the start.
func (r *Runtime) UpdateRuntimeConfig(context.Context, *v1.RuntimeConfig) error { return nil }

// UpdatePodSandboxResources has nothing to do: limits are those of containers.
func (r *Runtime) UpdatePodSandboxResources(context.Context, *v1.UpdatePodSandboxResourcesRequest) (*v1.UpdatePodSandboxResourcesResponse, error) {
	return &v1.UpdatePodSandboxResourcesResponse{}, nil
}

var errNoCheckpoint = status.Error(codes.Unimplemented, "the process runtime makes no checkpoints")

// CheckpointContainer is not possible.
func (r *Runtime) CheckpointContainer(context.Context, *v1.CheckpointContainerRequest) error {
	return errNoCheckpoint
}

// CheckpointPod is not possible.
func (r *Runtime) CheckpointPod(context.Context, *v1.CheckpointPodRequest) error {
	return errNoCheckpoint
}

// RestorePod is not possible.
func (r *Runtime) RestorePod(context.Context, *v1.RestorePodRequest) (*v1.RestorePodResponse, error) {
	return nil, errNoCheckpoint
}
