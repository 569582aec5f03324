package runtime

import (
	"os"
	"path/filepath"

	"github.com/trellis-k8s/trellis/cluster/internal/runtime/process"
)

// load reads the Pods and containers of an earlier runtime in this folder, and adopts its containers. Incomplete Pods
// and containers are removed.
func (r *Runtime) load() error {
	for _, id := range entries(r.sandboxFolder("")) {
		s := &sandbox{}
		if err := process.ReadFile(filepath.Join(r.sandboxFolder(id), sandboxFile), s); err != nil {
			if err := os.RemoveAll(r.sandboxFolder(id)); err != nil {
				return err
			}
			continue
		}
		s.Stopped = s.Stopped || !s.PauseProcess.Alive() // for example after a reboot
		r.sandboxes[id] = s
	}
	for _, id := range entries(r.containerFolder("")) {
		c := &container{done: make(chan struct{})}
		if err := process.ReadFile(filepath.Join(r.containerFolder(id), containerFile), c); err != nil {
			if err := os.RemoveAll(r.containerFolder(id)); err != nil {
				return err
			}
			continue
		}
		r.containers[id] = c
	}
	// An event of a container contains the state of all containers of its Pod, so all must have been read before.
	for _, c := range r.containers {
		r.adopt(c)
	}
	return nil
}

func entries(folder string) (names []string) {
	list, _ := os.ReadDir(folder)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// adopt sets the state of a container from its files. A running container is watched.
func (r *Runtime) adopt(c *container) {
	stored := func(name string) bool { return exists(filepath.Join(c.Spec.Folder, name)) }
	switch {
	case stored(process.ExitFile):
		r.mu.Lock()
		defer r.mu.Unlock()
		var started process.Started
		if process.ReadFile(filepath.Join(c.Spec.Folder, process.StartedFile), &started) == nil {
			c.started = &started
		}
		c.exit = &process.Exit{Code: 255, Reason: "Unknown"}
		process.ReadFile(filepath.Join(c.Spec.Folder, process.ExitFile), c.exit)
		close(c.done)
	case stored(process.StartedFile):
		r.watchContainer(c)
	case stored(process.SpecFile):
		// The earlier node ended before it permitted the shim to run the command, so the shim ends. The state stays
		// CREATED: the kubelet then creates another container, even if the Pod's restart policy is Never.
		c.starting = true
	}
}
