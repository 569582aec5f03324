package runtime

import (
	"os"
	"path/filepath"
	"time"

	"github.com/trellis-k8s/trellis/cluster/internal/runtime/process"
)

// load finds what a runtime of this folder left, however it ended. What was not made to its end is removed.
func (r *Runtime) load() error {
	for _, id := range entries(r.sandboxFolder("")) {
		s := &sandbox{}
		if err := process.ReadFile(filepath.Join(r.sandboxFolder(id), sandboxFile), s); err != nil {
			if err := os.RemoveAll(r.sandboxFolder(id)); err != nil {
				return err
			}
			continue
		}
		s.Stopped = s.Stopped || !s.Holder.Alive() // as after the machine has started anew
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
	for _, c := range r.containers { // all are known by now: who is told of the end of one looks at the others
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

// adopt finds out what has become of a container.
func (r *Runtime) adopt(c *container) {
	has := func(name string) bool { return exists(filepath.Join(c.Spec.Folder, name)) }
	switch {
	case has(process.ExitFile):
		r.mu.Lock()
		defer r.mu.Unlock()
		var started process.Started
		if process.ReadFile(filepath.Join(c.Spec.Folder, process.StartedFile), &started) == nil {
			c.started = &started
		}
		c.exit = &process.Exit{Code: 255, Reason: "Unknown"}
		process.ReadFile(filepath.Join(c.Spec.Folder, process.ExitFile), c.exit)
		close(c.done)
	case has(process.StartedFile):
		r.follow(c)
	case has(process.SpecFile): // its shim does not let it run: nobody has told it to
		r.finish(c, process.Exit{Code: 128, Reason: "StartError", Message: "the node ended while the container was started", At: time.Now()})
	}
}
