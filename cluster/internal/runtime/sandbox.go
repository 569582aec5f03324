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

// sandbox is the state of a Pod: its configuration and the namespaces that its containers share. All fields are stored
// in sandboxFile. Runtime.mu protects the fields.
type sandbox struct {
	ID           string
	Config       *v1.PodSandboxConfig
	Handler      string
	Created      time.Time
	Namespaces   int        `json:"Spaces"` // separate namespaces (CLONE_NEW…) of the pause process
	PauseProcess process.ID `json:"Holder"` // zero if the pause process has never run
	Address      string
	Stopped      bool
}

const sandboxFile = "sandbox.json"

func (s *sandbox) ready() bool { return !s.Stopped && s.PauseProcess.Alive() }

func (s *sandbox) name() string {
	return s.Config.GetMetadata().GetNamespace() + "/" + s.Config.GetMetadata().GetName()
}

func (r *Runtime) storeSandbox(s *sandbox) error {
	return process.WriteFile(filepath.Join(r.sandboxFolder(s.ID), sandboxFile), s)
}

// newNamespaces returns the namespaces (CLONE_NEW…) that a Pod does not share with the node.
func (r *Runtime) newNamespaces(config *v1.PodSandboxConfig) int {
	flags := 0
	options := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if options.GetNetwork() == v1.NamespaceMode_POD {
		flags |= unix.CLONE_NEWUTS
		if r.bridge != nil {
			flags |= unix.CLONE_NEWNET
		}
	}
	if options.GetIpc() == v1.NamespaceMode_POD {
		flags |= unix.CLONE_NEWIPC
	}
	if options.GetPid() == v1.NamespaceMode_POD {
		flags |= unix.CLONE_NEWPID
	}
	return flags
}

// RunPodSandbox creates the namespaces and the network of a Pod. It returns the sandbox's ID.
func (r *Runtime) RunPodSandbox(_ context.Context, config *v1.PodSandboxConfig, handler string) (string, error) {
	if handler != "" {
		return "", fmt.Errorf("unknown runtime handler %q: the process runtime has only the default handler", handler)
	}
	s := &sandbox{ID: newID(), Config: config, Created: time.Now(), Namespaces: r.newNamespaces(config)}
	if err := checkSysctls(config.GetLinux().GetSysctls(), s.Namespaces); err != nil {
		return "", err
	}
	if err := r.reserve(s); err != nil {
		return "", err
	}
	err := r.startSandbox(s)
	if err != nil {
		r.terminate(s)
		err = errors.Join(err, os.RemoveAll(r.sandboxFolder(s.ID)))
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.sandboxes, s.ID)
		return "", err
	}
	r.publish(s.ID, s.ID, v1.ContainerEventType_CONTAINER_CREATED_EVENT)
	r.publish(s.ID, s.ID, v1.ContainerEventType_CONTAINER_STARTED_EVENT)
	return s.ID, nil
}

// reserve reserves the ports and an address for a sandbox and adds it to the sandboxes.
func (r *Runtime) reserve(s *sandbox) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkPorts(s); err != nil {
		return err
	}
	switch {
	case s.Namespaces&unix.CLONE_NEWNET != 0:
		used := map[string]bool{}
		for _, other := range r.sandboxes {
			used[other.Address] = used[other.Address] || !other.Stopped
		}
		address, err := r.bridge.allocate(used)
		if err != nil {
			return err
		}
		s.Address = address.String()
	case s.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == v1.NamespaceMode_POD &&
		r.NodeIP.IsValid():
		s.Address = r.NodeIP.String()
	}
	r.sandboxes[s.ID] = s
	return nil
}

// startSandbox creates the files, the pause process and the network of a reserved sandbox.
func (r *Runtime) startSandbox(s *sandbox) error {
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
	pause := process.PauseProcess{Folder: folder, Namespaces: s.Namespaces, Sysctls: s.Config.GetLinux().GetSysctls()}
	if s.Namespaces&unix.CLONE_NEWUTS != 0 {
		pause.Hostname = s.Config.GetHostname()
	}
	err := pause.Start(func(id process.ID) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		s.PauseProcess = id
		return r.storeSandbox(s)
	})
	if err == nil && s.Namespaces&unix.CLONE_NEWNET != 0 {
		err = r.bridge.connect(s.ID, s.PauseProcess, s.Address)
	}
	return err
}

// resolvConf returns the content of resolv.conf for the DNS configuration of a Pod.
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

// terminate kills the pause process of a Pod, which ends the namespaces, and marks the Pod as stopped. It may be called
// repeatedly.
func (r *Runtime) terminate(s *sandbox) {
	if s.PauseProcess.PID != 0 {
		s.PauseProcess.Signal(unix.SIGKILL)
	}
	if s.Namespaces&unix.CLONE_NEWNET != 0 {
		r.bridge.disconnect(s.ID)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Stopped = true
	if s.PauseProcess.PID == 0 { // the pause process has never run
		delete(r.sandboxes, s.ID)
		return
	}
	if err := r.storeSandbox(s); err != nil { // load still recognizes the stopped Pod by its dead pause process
		r.Log.Error("Cannot store the end of a Pod", "sandbox", s.ID, "error", err)
	}
}

func (r *Runtime) sandbox(id string) *sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sandboxes[id]
}

// containersOf returns the containers of a sandbox.
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

// StopPodSandbox kills all containers of a Pod and ends its namespaces.
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
	r.terminate(s)
	r.publish(id, id, v1.ContainerEventType_CONTAINER_STOPPED_EVENT)
	return nil
}

// RemovePodSandbox stops a Pod and removes it with its containers.
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
	r.publish(id, id, v1.ContainerEventType_CONTAINER_DELETED_EVENT)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sandboxes, id)
	return nil
}

// PodSandboxStatus returns the status of a Pod without the statuses of its containers. If a response contained these
// statuses too, the kubelet (v1.37.1, kuberuntime_manager.go, GetPodStatus) would not assign the containers to the
// current sandbox. It would then start init containers repeatedly.
func (r *Runtime) PodSandboxStatus(_ context.Context, id string, _ bool) (*v1.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return nil, notFound("sandbox", id)
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
	options := s.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	return &v1.PodSandboxStatus{
		Id: s.ID, Metadata: s.Config.GetMetadata(), State: s.state(), CreatedAt: s.Created.UnixNano(),
		Network:        &v1.PodSandboxNetworkStatus{Ip: s.Address},
		Linux:          &v1.LinuxPodSandboxStatus{Namespaces: &v1.Namespace{Options: options}},
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
		if s.PauseProcess.PID == 0 || f.GetId() != "" && f.GetId() != s.ID ||
			!labelsMatch(f.GetLabelSelector(), s.Config.GetLabels()) {
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

func labelsMatch(selector, set map[string]string) bool {
	return labels.SelectorFromSet(selector).Matches(labels.Set(set))
}
