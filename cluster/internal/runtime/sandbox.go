package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/labels"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/trellis-k8s/trellis/cluster/internal/runtime/process"
)

// sandbox is a pod: the namespaces that its containers have in common. It is stored as it is, under Runtime.mu.
type sandbox struct {
	ID      string
	Config  *v1.PodSandboxConfig
	Handler string
	Created time.Time
	Spaces  int // CLONE_NEW…: those that its holder has
	Holder  process.ID
	Address string
	Stopped bool
}

const sandboxFile = "sandbox.json"

func (s *sandbox) ready() bool { return !s.Stopped && s.Holder.Alive() }

func (s *sandbox) name() string {
	return s.Config.GetMetadata().GetNamespace() + "/" + s.Config.GetMetadata().GetName()
}

func (r *Runtime) store(s *sandbox) error {
	return process.WriteFile(filepath.Join(r.sandboxFolder(s.ID), sandboxFile), s)
}

// spaces are the namespaces that a pod gets for itself.
func (r *Runtime) spaces(config *v1.PodSandboxConfig) int {
	spaces := 0
	options := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if options.GetNetwork() == v1.NamespaceMode_POD {
		spaces |= unix.CLONE_NEWUTS
		if r.bridge != nil {
			spaces |= unix.CLONE_NEWNET
		}
	}
	if options.GetIpc() == v1.NamespaceMode_POD {
		spaces |= unix.CLONE_NEWIPC
	}
	if options.GetPid() == v1.NamespaceMode_POD {
		spaces |= unix.CLONE_NEWPID
	}
	return spaces
}

// RunPodSandbox makes the namespaces of a pod, and its address.
func (r *Runtime) RunPodSandbox(_ context.Context, config *v1.PodSandboxConfig, handler string) (string, error) {
	if handler != "" {
		return "", fmt.Errorf("there is no runtime handler %q: the process runtime has the default one alone", handler)
	}
	s := &sandbox{ID: newID(), Config: config, Created: time.Now(), Spaces: r.spaces(config)}
	if err := checkSysctls(config.GetLinux().GetSysctls(), s.Spaces); err != nil {
		return "", err
	}
	if err := r.claim(s); err != nil {
		return "", err
	}
	err := r.run(s)
	if err != nil {
		r.release(s)
		err = errors.Join(err, os.RemoveAll(r.sandboxFolder(s.ID)))
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.sandboxes, s.ID)
		return "", err
	}
	r.tell(s.ID, s.ID, v1.ContainerEventType_CONTAINER_CREATED_EVENT)
	r.tell(s.ID, s.ID, v1.ContainerEventType_CONTAINER_STARTED_EVENT)
	return s.ID, nil
}

// claim makes the sandbox known, with ports and an address that no other has.
func (r *Runtime) claim(s *sandbox) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.portsFree(s); err != nil {
		return err
	}
	switch {
	case s.Spaces&unix.CLONE_NEWNET != 0:
		used := map[string]bool{}
		for _, other := range r.sandboxes {
			used[other.Address] = used[other.Address] || !other.Stopped
		}
		address, err := r.bridge.free(used)
		if err != nil {
			return err
		}
		s.Address = address.String()
	case s.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == v1.NamespaceMode_POD && r.NodeIP.IsValid():
		s.Address = r.NodeIP.String()
	}
	r.sandboxes[s.ID] = s
	return nil
}

func (r *Runtime) run(s *sandbox) error {
	folder := r.sandboxFolder(s.ID)
	if err := os.MkdirAll(filepath.Join(folder, "shm"), 0o711); err != nil {
		return err
	}
	if err := os.Chmod(filepath.Join(folder, "shm"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	if dns := resolvConf(s.Config.GetDnsConfig()); dns != "" {
		if err := os.WriteFile(filepath.Join(folder, "resolv.conf"), []byte(dns), 0o644); err != nil {
			return err
		}
	}
	holder := process.Holder{Folder: folder, Namespaces: s.Spaces, Sysctls: s.Config.GetLinux().GetSysctls()}
	if s.Spaces&unix.CLONE_NEWUTS != 0 {
		holder.Hostname = s.Config.GetHostname()
	}
	err := holder.Start(func(id process.ID) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		s.Holder = id
		return r.store(s)
	})
	if err == nil && s.Spaces&unix.CLONE_NEWNET != 0 {
		err = r.bridge.connect(s.ID, s.Holder, s.Address)
	}
	return err
}

func resolvConf(dns *v1.DNSConfig) string {
	var b strings.Builder
	for _, server := range dns.GetServers() {
		fmt.Fprintln(&b, "nameserver", server)
	}
	if list := dns.GetSearches(); len(list) > 0 {
		fmt.Fprintln(&b, "search", strings.Join(list, " "))
	}
	if list := dns.GetOptions(); len(list) > 0 {
		fmt.Fprintln(&b, "options", strings.Join(list, " "))
	}
	return b.String()
}

// release ends the holder, and with it the namespaces. It may be repeated.
func (r *Runtime) release(s *sandbox) {
	if s.Holder.PID != 0 {
		s.Holder.Signal(unix.SIGKILL)
	}
	if s.Spaces&unix.CLONE_NEWNET != 0 {
		r.bridge.disconnect(s.ID)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Stopped = true
	if s.Holder.PID == 0 { // it never was
		delete(r.sandboxes, s.ID)
		return
	}
	if err := r.store(s); err != nil { // as on a full disk; that its holder has ended says the same
		r.Log.Error("Cannot write down that a Pod has ended", "sandbox", s.ID, "error", err)
	}
}

func (r *Runtime) sandbox(id string) *sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sandboxes[id]
}

// containersOf are the containers of a sandbox.
func (r *Runtime) containersOf(id string) (list []*container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.Sandbox == id {
			list = append(list, c)
		}
	}
	return list
}

// StopPodSandbox ends all processes of a pod.
func (r *Runtime) StopPodSandbox(ctx context.Context, id string) error {
	s := r.sandbox(id)
	if s == nil {
		return nil
	}
	var all sync.WaitGroup
	list := r.containersOf(id)
	errs := make([]error, len(list))
	for i, c := range list {
		all.Go(func() { errs[i] = r.stop(ctx, c, 0) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	r.release(s)
	r.tell(id, id, v1.ContainerEventType_CONTAINER_STOPPED_EVENT)
	return nil
}

// RemovePodSandbox forgets a pod.
func (r *Runtime) RemovePodSandbox(ctx context.Context, id string) error {
	s := r.sandbox(id)
	if s == nil {
		return nil
	}
	if err := r.StopPodSandbox(ctx, id); err != nil {
		return err
	}
	for _, c := range r.containersOf(id) {
		if err := r.RemoveContainer(ctx, c.ID); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(r.sandboxFolder(id)); err != nil {
		return err
	}
	r.tell(id, id, v1.ContainerEventType_CONTAINER_DELETED_EVENT)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sandboxes, id)
	return nil
}

// PodSandboxStatus tells about a pod. Its containers it leaves out: of a runtime that tells of both in one answer, the
// kubelet (v1.37.1, kuberuntime_manager.go, GetPodStatus) takes no container for one of the pod's present sandbox, and
// starts init containers over and over.
func (r *Runtime) PodSandboxStatus(_ context.Context, id string, _ bool) (*v1.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return nil, missing("sandbox", id)
	}
	return &v1.PodSandboxStatusResponse{Status: s.status()}, nil
}

func (s *sandbox) state() v1.PodSandboxState {
	if s.ready() {
		return v1.PodSandboxState_SANDBOX_READY
	}
	return v1.PodSandboxState_SANDBOX_NOTREADY
}

func (s *sandbox) status() *v1.PodSandboxStatus {
	return &v1.PodSandboxStatus{
		Id: s.ID, Metadata: s.Config.GetMetadata(), State: s.state(), CreatedAt: s.Created.UnixNano(),
		Network:        &v1.PodSandboxNetworkStatus{Ip: s.Address},
		Linux:          &v1.LinuxPodSandboxStatus{Namespaces: &v1.Namespace{Options: s.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()}},
		Labels:         s.Config.GetLabels(),
		Annotations:    s.Config.GetAnnotations(),
		RuntimeHandler: s.Handler,
	}
}

// ListPodSandbox lists pods.
func (r *Runtime) ListPodSandbox(_ context.Context, f *v1.PodSandboxFilter) ([]*v1.PodSandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*v1.PodSandbox
	for _, s := range r.sandboxes {
		if s.Holder.PID == 0 || f.GetId() != "" && f.GetId() != s.ID || !selects(f.GetLabelSelector(), s.Config.GetLabels()) {
			continue
		}
		state := s.state()
		if f.GetState() != nil && f.GetState().GetState() != state {
			continue
		}
		list = append(list, &v1.PodSandbox{
			Id: s.ID, Metadata: s.Config.GetMetadata(), State: state, CreatedAt: s.Created.UnixNano(),
			Labels: s.Config.GetLabels(), Annotations: s.Config.GetAnnotations(), RuntimeHandler: s.Handler,
		})
	}
	return list, nil
}

func selects(selector, of map[string]string) bool {
	return labels.SelectorFromSet(selector).Matches(labels.Set(of))
}
