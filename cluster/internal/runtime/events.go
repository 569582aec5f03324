package runtime

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// eventBroadcaster sends events of containers to the kubelet, which would otherwise detect changes only by polling.
type eventBroadcaster struct {
	mu          sync.Mutex
	subscribers map[chan *v1.ContainerEventResponse]bool
}

// maxQueuedEvents is the capacity of a subscriber's queue. A subscriber whose queue overflows gets errEventOverflow and
// has to list all containers again.
const maxQueuedEvents = 1024

var errEventOverflow = errors.New("container event buffer overflow")

// GetContainerEvents sends events to a channel until ctx ends or the queue of this subscriber overflows. It calls
// connected when the subscription has started.
func (r *Runtime) GetContainerEvents(
	ctx context.Context, to chan *v1.ContainerEventResponse,
	connected func(v1.RuntimeService_GetContainerEventsClient),
) error {
	queue := make(chan *v1.ContainerEventResponse, maxQueuedEvents)
	r.events.mu.Lock()
	if r.events.subscribers == nil {
		r.events.subscribers = map[chan *v1.ContainerEventResponse]bool{}
	}
	r.events.subscribers[queue] = true
	r.events.mu.Unlock()
	defer r.events.unsubscribe(queue)
	if connected != nil {
		connected(nil)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, ok := <-queue:
			if !ok {
				return errEventOverflow
			}
			select {
			case to <- event:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func (e *eventBroadcaster) unsubscribe(queue chan *v1.ContainerEventResponse) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.subscribers, queue)
}

// publish sends an event of a container to all subscribers. For an event of a sandbox, id is the sandbox's ID.
func (r *Runtime) publish(sandboxID, id string, kind v1.ContainerEventType) {
	event := &v1.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano()}
	r.mu.Lock()
	if s := r.sandboxes[sandboxID]; s != nil {
		event.PodSandboxStatus, event.ContainersStatuses = s.status(), r.containerStatuses(sandboxID)
	}
	r.mu.Unlock()
	r.events.mu.Lock()
	defer r.events.mu.Unlock()
	for queue := range r.events.subscribers {
		select {
		case queue <- event:
		default:
			delete(r.events.subscribers, queue)
			close(queue)
		}
	}
}
