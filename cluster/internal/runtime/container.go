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

// container is a process, or was one, or will be. What is exported is stored; the rest lies in the files of its shim.
// All of it is under Runtime.mu.
type container struct {
	ID      string
	Sandbox string
	Config  *v1.ContainerConfig
	Created time.Time
	Image   *v1.Image
	Group   group
	Spec    process.Spec

	starting bool
	started  *process.Started
	exit     *process.Exit
	done     chan struct{} // closed when exit is there
	asked    atomic.Bool   // it has had the signal to stop
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
	return nil, missing("container", id)
}

// running is a container whose command runs.
func (r *Runtime) running(id string) (*container, process.Started, error) {
	c, err := r.container(id)
	if err != nil {
		return nil, process.Started{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.state() != v1.ContainerState_CONTAINER_RUNNING {
		return nil, process.Started{}, fmt.Errorf("container %s does not run", id)
	}
	return c, *c.started, nil
}

// CreateContainer decides all there is to decide about a container; nothing runs yet.
func (r *Runtime) CreateContainer(_ context.Context, sandboxID string, config *v1.ContainerConfig, _ *v1.PodSandboxConfig) (string, error) {
	s := r.sandbox(sandboxID)
	if s == nil {
		return "", missing("sandbox", sandboxID)
	}
	if s.Holder.Foreign() {
		// The kubelet makes a pod anew whose sandbox does not run. Until here what ran of it has run on.
		r.release(s)
		return "", errors.New("the pod is of a node in another user namespace, where nothing can be started from here: it is made anew")
	}
	img, err := r.Images.find(cmp.Or(config.GetImage().GetUserSpecifiedImage(), config.GetImage().GetImage()))
	if err != nil {
		return "", err
	}
	c := &container{ID: newID(), Sandbox: sandboxID, Config: config, Created: time.Now(), Image: img.describe(), done: make(chan struct{})}
	if c.Spec, err = r.spec(c.ID, s, config, img); err != nil {
		return "", err
	}
	if err := os.MkdirAll(c.Spec.Folder, 0o711); err != nil {
		return "", err
	}
	c.Group = r.makeGroup(s, c.ID, config.GetLinux().GetResources())
	c.Spec.Cgroups = c.Group.Folders
	r.mu.Lock()
	err = r.keep(c)
	r.mu.Unlock()
	if err != nil {
		return "", errors.Join(err, c.Group.destroy(), os.RemoveAll(c.Spec.Folder))
	}
	r.tell(c.Sandbox, c.ID, v1.ContainerEventType_CONTAINER_CREATED_EVENT)
	return c.ID, nil
}

func (r *Runtime) keep(c *container) error {
	r.containers[c.ID] = c
	return process.WriteFile(filepath.Join(c.Spec.Folder, containerFile), c)
}

// StartContainer returns when the command runs.
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
		r.finish(c, process.Exit{Code: 128, Reason: "StartError", Message: err.Error(), At: time.Now()})
		return err
	}
	r.follow(c)
	r.tell(c.Sandbox, id, v1.ContainerEventType_CONTAINER_STARTED_EVENT)
	return nil
}

// follow learns of the end of a container that has been started, by this process or one before it.
func (r *Runtime) follow(c *container) {
	end := func(exit process.Exit, told bool) {
		if !told { // by its shim, which may have written it down
			exit = process.Exit{Code: 255, Reason: "Unknown", Message: "its shim has ended without a word", At: time.Now()}
			process.ReadFile(filepath.Join(c.Spec.Folder, process.ExitFile), &exit)
		}
		if exit.Code != 0 && c.Group.outOfMemory() {
			exit.Reason = "OOMKilled"
		}
		r.finish(c, exit)
	}
	var started process.Started
	if err := process.ReadFile(filepath.Join(c.Spec.Folder, process.StartedFile), &started); err != nil {
		end(process.Exit{}, false)
		return
	}
	r.mu.Lock()
	c.started = &started
	r.mu.Unlock()
	ended, err := c.shim().Watch()
	if err != nil { // nobody is there any more
		end(process.Exit{}, false)
		return
	}
	go func() {
		exit, told := <-ended
		end(exit, told)
	}()
}

// finish notes how a container ended.
func (r *Runtime) finish(c *container, exit process.Exit) {
	r.mu.Lock()
	c.exit = &exit
	err := process.WriteFile(filepath.Join(c.Spec.Folder, process.ExitFile), exit)
	close(c.done)
	r.mu.Unlock()
	if err != nil {
		r.Log.Error("Writing down how a container ended", "container", c.ID, "err", err)
	}
	r.tell(c.Sandbox, c.ID, v1.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// StopContainer asks a container to end, and ends it after timeout seconds.
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
		if c.asked.CompareAndSwap(false, true) {
			c.shim().Signal(stopSignal(c.Config))
		}
		patience := time.NewTimer(grace)
		defer patience.Stop()
		select {
		case <-c.done:
			return nil
		case <-ctx.Done(): // the kubelet asks again when a Pod gets less time than it had
			return ctx.Err()
		case <-patience.C:
		}
	}
	err := c.shim().Signal(unix.SIGKILL) // fails where the container has just ended by itself
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("killing container %s: %w", c.ID, errors.Join(err, ctx.Err()))
	}
}

// killTime is how long the kernel may take to end a process.
const killTime = 10 * time.Second

func stopSignal(config *v1.ContainerConfig) unix.Signal {
	if s := unix.SignalNum(config.GetStopSignal().String()[len("SIGNAL_"):]); config.GetStopSignal() != 0 && s != 0 {
		return s
	}
	return unix.SIGTERM
}

// RemoveContainer forgets a container; one that runs is killed.
func (r *Runtime) RemoveContainer(ctx context.Context, id string) error {
	c, err := r.container(id)
	if err != nil {
		return nil
	}
	if err := r.stop(ctx, c, 0); err != nil {
		return err
	}
	if err := errors.Join(c.Group.destroy(), os.RemoveAll(c.Spec.Folder)); err != nil {
		return fmt.Errorf("removing container %s: %w", id, err)
	}
	r.mu.Lock()
	delete(r.containers, id)
	r.mu.Unlock()
	r.tell(c.Sandbox, id, v1.ContainerEventType_CONTAINER_DELETED_EVENT)
	return nil
}

// ReopenContainerLog goes on in a new log file.
func (r *Runtime) ReopenContainerLog(_ context.Context, id string) error {
	c, _, err := r.running(id)
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
	if err := c.Group.limit(resources.GetLinux(), 0); err != nil {
		return fmt.Errorf("changing the limits of container %s: %w", id, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Config.Linux == nil {
		c.Config.Linux = &v1.LinuxContainerConfig{}
	}
	c.Config.Linux.Resources = resources.GetLinux()
	return r.keep(c)
}

// ListContainers lists containers.
func (r *Runtime) ListContainers(_ context.Context, f *v1.ContainerFilter) ([]*v1.Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*v1.Container
	for _, c := range r.containers {
		if !c.fits(f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector()) || f.GetState() != nil && f.GetState().GetState() != c.state() {
			continue
		}
		list = append(list, &v1.Container{
			Id: c.ID, PodSandboxId: c.Sandbox, Metadata: c.Config.GetMetadata(), Image: c.named(), ImageRef: c.Image.GetId(), ImageId: c.Image.GetId(),
			State: c.state(), CreatedAt: c.Created.UnixNano(), Labels: c.Config.GetLabels(), Annotations: c.Config.GetAnnotations(),
		})
	}
	return list, nil
}

func (c *container) fits(id, sandbox string, labels map[string]string) bool {
	return (id == "" || id == c.ID) && (sandbox == "" || sandbox == c.Sandbox) && selects(labels, c.Config.GetLabels())
}

// ContainerStatus tells about a container.
func (r *Runtime) ContainerStatus(_ context.Context, id string, _ bool) (*v1.ContainerStatusResponse, error) {
	c, err := r.container(id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return &v1.ContainerStatusResponse{Status: c.status()}, nil
}

// named is the image by the name that the pod has for it.
func (c *container) named() *v1.ImageSpec {
	return &v1.ImageSpec{Image: c.Image.GetRepoTags()[0], Annotations: c.Config.GetImage().GetAnnotations(), UserSpecifiedImage: c.Image.GetRepoTags()[0]}
}

func (c *container) status() *v1.ContainerStatus {
	s := &v1.ContainerStatus{
		Id: c.ID, Metadata: c.Config.GetMetadata(), State: c.state(), CreatedAt: c.Created.UnixNano(),
		Image: c.named(), ImageRef: c.Image.GetId(), ImageId: c.Image.GetId(),
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

// statusesOf are those of the containers of a sandbox. Called under mu.
func (r *Runtime) statusesOf(sandbox string) (list []*v1.ContainerStatus) {
	for _, c := range r.containers {
		if c.Sandbox == sandbox {
			list = append(list, c.status())
		}
	}
	return list
}
