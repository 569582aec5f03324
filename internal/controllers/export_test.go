package controllers

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	client "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/utils/clock"
)

// Unwritten is how many reports wait to be written.
func (r *Reachability) Unwritten() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.latest)
}

// WatchKinds has told called with what is heard of objects through the API alone, until ctx is done.
func WatchKinds(ctx context.Context, config *rest.Config, told func(resource string, m *metav1.PartialObjectMetadata, deleted bool)) error {
	c, err := newClients(config, nil)
	if err != nil {
		return err
	}
	s := newKindWatchers(c)
	s.onChange = func(ch change) {
		for _, m := range ch.objects() {
			told(ch.kind.Resource, m, ch.deleted)
		}
	}
	s.run(ctx)
	return nil
}

// WithClock has the loop go by a clock.
func (a *APIServices) WithClock(c clock.PassiveClock) *APIServices {
	a.clock = c
	return a
}

// Sync brings one APIService up to date once.
func (a *APIServices) Sync(ctx context.Context, c client.APIServiceInterface, name string) error {
	return a.sync(ctx, c, name)
}

// IsPermanent is refused.
func IsPermanent(err error) bool { return isPermanent(err) }

// RunStandalone runs the controllers against an API server without other loops, which tell them of objects through
// the API.
func (u *Upstream) RunStandalone(ctx context.Context, config *rest.Config) error {
	c, err := newClients(config, nil)
	if err != nil {
		return err
	}
	s := newKindWatchers(c)
	s.onChange = u.observe
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.run(ctx)
	}()
	defer func() { <-ended }()
	return u.Run(ctx, config)
}

// TrellisEnabled says whether one of Loops runs.
func (u *Upstream) TrellisEnabled(name string) bool { return u.trellisEnabled(name) }
