package flowcontrol

import "github.com/trellis-k8s/trellis/internal/access"

// Names returns the names of the FlowSchema and the priority level of a request.
func (x *Controller) Names(a *access.Attributes) (schema, level string) {
	f := x.classify(a, x.clock.Now())
	return f.schema, f.level.name
}

// Queued returns the number of requests that wait at a level.
func (x *Controller) Queued(name string) int {
	l := x.find(name)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queued
}

// Limit returns the current number of seats of a level.
func (x *Controller) Limit(name string) int {
	l := x.find(name)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit
}

func (x *Controller) find(name string) *level {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.levels[name]
}
