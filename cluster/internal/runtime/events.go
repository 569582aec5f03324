package runtime

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// events are what the kubelet hears of at once, and would otherwise find out.
type events struct {
	mu        sync.Mutex
	listeners map[chan *v1.ContainerEventResponse]bool
}

// backlog is how many events wait for somebody who listens. Who has missed one is told so, and looks again at everything.
const backlog = 1024

var errMissed = errors.New("events of containers came faster than they were taken")

// GetContainerEvents sends events until ctx ends.
func (r *Runtime) GetContainerEvents(ctx context.Context, to chan *v1.ContainerEventResponse, connected func(v1.RuntimeService_GetContainerEventsClient)) error {
	queue := make(chan *v1.ContainerEventResponse, backlog)
	r.events.mu.Lock()
	if r.events.listeners == nil {
		r.events.listeners = map[chan *v1.ContainerEventResponse]bool{}
	}
	r.events.listeners[queue] = true
	r.events.mu.Unlock()
	defer r.events.leave(queue)
	if connected != nil {
		connected(nil)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, ok := <-queue:
			if !ok {
				return errMissed
			}
			select {
			case to <- event:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func (e *events) leave(queue chan *v1.ContainerEventResponse) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.listeners, queue)
}

// tell sends an event about a container, or about a sandbox itself.
func (r *Runtime) tell(sandboxID, id string, what v1.ContainerEventType) {
	event := &v1.ContainerEventResponse{ContainerId: id, ContainerEventType: what, CreatedAt: time.Now().UnixNano()}
	r.mu.Lock()
	if s := r.sandboxes[sandboxID]; s != nil {
		event.PodSandboxStatus, event.ContainersStatuses = s.status(), r.statusesOf(sandboxID)
	}
	r.mu.Unlock()
	r.events.mu.Lock()
	defer r.events.mu.Unlock()
	for queue := range r.events.listeners {
		select {
		case queue <- event:
		default:
			delete(r.events.listeners, queue)
			close(queue)
		}
	}
}
