package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/trellis-k8s/trellis/cluster/internal/runtime/process"
)

// container is the state of a container. The exported fields are stored in containerFile, the others in the files of
// the shim. Runtime.mu protects all fields.
type container struct {
	ID      string
	Sandbox string
	Config  *v1.ContainerConfig
	Created time.Time
	Image   *v1.Image
	Cgroup  cgroup `json:"Group"`
	Spec    process.Spec

	starting     bool
	started      *process.Started
	exit         *process.Exit
	done         chan struct{} // closed when exit has been set
	stopSignaled atomic.Bool   // the stop signal has been sent
}

const containerFile = "container.json"

func (c *container) state() v1.ContainerState {
	switch {
	case c.exit != nil:
		return v1.ContainerState_CONTAINER_EXITED
	case c.started != nil:
		return v1.ContainerState_CONTAINER_RUNNING
	}
	return v1.ContainerState_CONTAINER_CREATED
}

func (c *container) shim() process.Shim { return process.Shim{Folder: c.Spec.Folder} }

func (r *Runtime) container(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		return c, nil
	}
	return nil, notFound("container", id)
}

// runningContainer returns the container with an ID, or an error if it does not run.
func (r *Runtime) runningContainer(id string) (*container, process.Started, error) {
	c, err := r.container(id)
	if err != nil {
		return nil, process.Started{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.state() != v1.ContainerState_CONTAINER_RUNNING {
		return nil, process.Started{}, fmt.Errorf("container %s is not running", id)
	}
	return c, *c.started, nil
}

// CreateContainer creates a container without starting it.
func (r *Runtime) CreateContainer(
	_ context.Context, sandboxID string, config *v1.ContainerConfig, _ *v1.PodSandboxConfig,
) (string, error) {
	s := r.sandbox(sandboxID)
	if s == nil {
		return "", notFound("sandbox", sandboxID)
	}
	if s.PauseProcess.InOtherUserNamespace() {
		// The running containers of the Pod have continued until now. The kubelet recreates a Pod whose sandbox has
		// stopped.
		r.terminate(s)
		return "", errors.New(
			"cannot start a container, because its pod is in another user namespace: the pod will be recreated")
	}
	img, err := r.Images.resolve(cmp.Or(config.GetImage().GetUserSpecifiedImage(), config.GetImage().GetImage()))
	if err != nil {
		return "", err
	}
	c := &container{
		ID: newID(), Sandbox: sandboxID, Config: config, Created: time.Now(), Image: img.criImage(),
		done: make(chan struct{}),
	}
	if c.Spec, err = r.spec(c.ID, s, config, img); err != nil {
		return "", err
	}
	if err := os.MkdirAll(c.Spec.Folder, 0o711); err != nil {
		return "", err
	}
	c.Cgroup = r.createCgroup(s, c.ID, config.GetLinux().GetResources())
	c.Spec.Cgroups = c.Cgroup.Folders
	r.mu.Lock()
	err = r.storeContainer(c)
	r.mu.Unlock()
	if err != nil {
		return "", errors.Join(err, c.Cgroup.destroy(), os.RemoveAll(c.Spec.Folder))
	}
	r.publish(c.Sandbox, c.ID, v1.ContainerEventType_CONTAINER_CREATED_EVENT)
	return c.ID, nil
}

// storeContainer adds c to the map of containers and writes its file. r.mu must be held.
func (r *Runtime) storeContainer(c *container) error {
	r.containers[c.ID] = c
	return process.WriteFile(filepath.Join(c.Spec.Folder, containerFile), c)
}

// StartContainer starts a container. It returns when the command runs.
func (r *Runtime) StartContainer(_ context.Context, id string) error {
	c, err := r.container(id)
	if err != nil {
		return err
	}
	r.mu.Lock()
	fresh := !c.starting && c.state() == v1.ContainerState_CONTAINER_CREATED
	c.starting = true
	r.mu.Unlock()
	if !fresh {
		return fmt.Errorf("container %s has been started already", id)
	}
	err = process.WriteFile(filepath.Join(c.Spec.Folder, process.SpecFile), c.Spec)
	if err == nil {
		err = process.Launch(c.Spec.Folder)
	}
	if err != nil {
		err = fmt.Errorf("starting container %q: %w", c.Config.GetMetadata().GetName(), err)
		r.recordExit(c, process.Exit{Code: 128, Reason: "StartError", Message: err.Error(), At: time.Now()})
		return err
	}
	r.watchContainer(c)
	r.publish(c.Sandbox, id, v1.ContainerEventType_CONTAINER_STARTED_EVENT)
	return nil
}

// watchContainer sets the start time of a started container and records its exit when it ends. This process or an
// earlier one may have started the container. If the shim has removed StartedFile, the command never ran.
func (r *Runtime) watchContainer(c *container) {
	record := func(exit process.Exit, reported bool) {
		if !reported {
			if !exists(filepath.Join(c.Spec.Folder, process.StartedFile)) {
				r.resetStart(c)
				return
			}
			exit = process.Exit{
				Code: 255, Reason: "Unknown", At: time.Now(),
				Message: "the shim process of the container ended before it reported an exit status",
			}
			// The shim may have written the file before it ended.
			process.ReadFile(filepath.Join(c.Spec.Folder, process.ExitFile), &exit)
		}
		if exit.Code != 0 && c.Cgroup.oomKilled() {
			exit.Reason = "OOMKilled"
		}
		r.recordExit(c, exit)
	}
	var started process.Started
	if err := process.ReadFile(filepath.Join(c.Spec.Folder, process.StartedFile), &started); err != nil {
		record(process.Exit{}, false)
		return
	}
	r.mu.Lock()
	c.started = &started
	r.mu.Unlock()
	exits, err := c.shim().Watch()
	if err != nil { // the shim has ended
		record(process.Exit{}, false)
		return
	}
	go func() {
		exit, reported := <-exits
		record(exit, reported)
	}()
}

// resetStart sets the state of a container to CREATED, because the earlier node ended before the command ran.
func (r *Runtime) resetStart(c *container) {
	r.mu.Lock()
	c.starting, c.started = true, nil
	close(c.done)
	r.mu.Unlock()
	r.publish(c.Sandbox, c.ID, v1.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// recordExit stores the exit status of a container and publishes an event.
func (r *Runtime) recordExit(c *container, exit process.Exit) {
	r.mu.Lock()
	c.exit = &exit
	err := process.WriteFile(filepath.Join(c.Spec.Folder, process.ExitFile), exit)
	close(c.done)
	r.mu.Unlock()
	if err != nil {
		r.Log.Error("Cannot store the exit status of a container", "container", c.ID, "err", err)
	}
	r.publish(c.Sandbox, c.ID, v1.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// StopContainer sends the stop signal to a container, and kills it after timeout seconds. It does nothing if the
// container does not exist or does not run.
func (r *Runtime) StopContainer(ctx context.Context, id string, timeout int64) error {
	c, err := r.container(id)
	if err != nil {
		return nil
	}
	return r.stop(ctx, c, time.Duration(timeout)*time.Second)
}

func (r *Runtime) stop(ctx context.Context, c *container, grace time.Duration) error {
	r.mu.Lock()
	running := c.state() == v1.ContainerState_CONTAINER_RUNNING
	r.mu.Unlock()
	if !running {
		return nil
	}
	if grace > 0 {
		if c.stopSignaled.CompareAndSwap(false, true) {
			c.shim().Signal(stopSignal(c.Config))
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-c.done:
			return nil
		case <-ctx.Done(): // the kubelet calls StopContainer again if the Pod's grace period gets shorter
			return ctx.Err()
		case <-timer.C:
		}
	}
	err := c.shim().Signal(unix.SIGKILL) // returns an error if the container has just ended
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("killing container %s: %w", c.ID, errors.Join(err, ctx.Err()))
	}
}

// killTimeout is the maximum time that the kernel may take to end a killed process.
const killTimeout = 10 * time.Second

func stopSignal(config *v1.ContainerConfig) unix.Signal {
	if s := unix.SignalNum(config.GetStopSignal().String()[len("SIGNAL_"):]); config.GetStopSignal() != 0 && s != 0 {
		return s
	}
	return unix.SIGTERM
}

// RemoveContainer removes a container. A running container is killed first.
func (r *Runtime) RemoveContainer(ctx context.Context, id string) error {
	c, err := r.container(id)
	if err != nil {
		return nil
	}
	if err := r.stop(ctx, c, 0); err != nil {
		return err
	}
	if err := errors.Join(c.Cgroup.destroy(), os.RemoveAll(c.Spec.Folder)); err != nil {
		return fmt.Errorf("removing container %s: %w", id, err)
	}
	r.mu.Lock()
	delete(r.containers, id)
	r.mu.Unlock()
	r.publish(c.Sandbox, id, v1.ContainerEventType_CONTAINER_DELETED_EVENT)
	return nil
}

// ReopenContainerLog opens the log file of a running container again after the kubelet has renamed it.
func (r *Runtime) ReopenContainerLog(_ context.Context, id string) error {
	c, _, err := r.runningContainer(id)
	if err != nil {
		return err
	}
	return c.shim().Reopen()
}

// UpdateContainerResources changes the limits of a container.
func (r *Runtime) UpdateContainerResources(_ context.Context, id string, resources *v1.ContainerResources) error {
	c, err := r.container(id)
	if err != nil {
		return err
	}
	if err := c.Cgroup.setLimits(resources.GetLinux(), 0); err != nil {
		return fmt.Errorf("changing the limits of container %s: %w", id, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Config.Linux == nil {
		c.Config.Linux = &v1.LinuxContainerConfig{}
	}
	c.Config.Linux.Resources = resources.GetLinux()
	return r.storeContainer(c)
}

// ListContainers lists containers.
func (r *Runtime) ListContainers(_ context.Context, f *v1.ContainerFilter) ([]*v1.Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*v1.Container
	for _, c := range r.containers {
		if !c.matches(f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector()) ||
			f.GetState() != nil && f.GetState().GetState() != c.state() {
			continue
		}
		list = append(list, &v1.Container{
			Id: c.ID, PodSandboxId: c.Sandbox, Metadata: c.Config.GetMetadata(),
			Image: c.imageSpec(), ImageRef: c.Image.GetId(), ImageId: c.Image.GetId(), State: c.state(),
			CreatedAt: c.Created.UnixNano(), Labels: c.Config.GetLabels(), Annotations: c.Config.GetAnnotations(),
		})
	}
	return list, nil
}

// matches reports whether the container matches a filter. An empty parameter matches all containers.
func (c *container) matches(id, sandbox string, labels map[string]string) bool {
	return (id == "" || id == c.ID) && (sandbox == "" || sandbox == c.Sandbox) &&
		labelsMatch(labels, c.Config.GetLabels())
}

// ContainerStatus returns the status of a container.
func (r *Runtime) ContainerStatus(_ context.Context, id string, _ bool) (*v1.ContainerStatusResponse, error) {
	c, err := r.container(id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return &v1.ContainerStatusResponse{Status: c.status()}, nil
}

// imageSpec returns the image with the name that the Pod uses for it.
func (c *container) imageSpec() *v1.ImageSpec {
	name := c.Image.GetRepoTags()[0]
	return &v1.ImageSpec{Image: name, Annotations: c.Config.GetImage().GetAnnotations(), UserSpecifiedImage: name}
}

func (c *container) status() *v1.ContainerStatus {
	s := &v1.ContainerStatus{
		Id: c.ID, Metadata: c.Config.GetMetadata(), State: c.state(), CreatedAt: c.Created.UnixNano(),
		Image: c.imageSpec(), ImageRef: c.Image.GetId(), ImageId: c.Image.GetId(),
		Labels: c.Config.GetLabels(), Annotations: c.Config.GetAnnotations(), Mounts: c.Config.GetMounts(),
		LogPath: c.Spec.Log, StopSignal: c.Config.GetStopSignal(),
		Resources: &v1.ContainerResources{Linux: c.Config.GetLinux().GetResources()},
	}
	if c.started != nil {
		s.StartedAt = c.started.At.UnixNano()
	}
	if c.exit != nil {
		s.FinishedAt, s.ExitCode, s.Reason, s.Message = c.exit.At.UnixNano(), c.exit.Code, c.exit.Reason, c.exit.Message
	}
	return s
}

// containerStatuses returns the statuses of the containers of a sandbox. r.mu must be held.
func (r *Runtime) containerStatuses(sandbox string) (list []*v1.ContainerStatus) {
	for _, c := range r.containers {
		if c.Sandbox == sandbox {
			list = append(list, c.status())
		}
	}
	return list
}
