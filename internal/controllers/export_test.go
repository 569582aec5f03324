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

// Follow has told called with what is heard of objects through the API alone, until ctx is done.
func Follow(ctx context.Context, config *rest.Config, told func(resource string, m *metav1.PartialObjectMetadata, deleted bool)) error {
	c, err := newClients(config, nil)
	if err != nil {
		return err
	}
	s := newKinds(c)
	s.onChange = func(ch change) {
		for _, m := range ch.objects() {
			told(ch.kind.Resource, m, ch.deleted)
		}
	}
	s.run(ctx)
	return nil
}

// At has the loop go by a clock.
func (a *APIServices) At(c clock.PassiveClock) *APIServices {
	a.clock = c
	return a
}

// Sync brings one APIService up to date once.
func (a *APIServices) Sync(ctx context.Context, c client.APIServiceInterface, name string) error {
	return a.sync(ctx, c, name)
}

// Refused is refused.
func Refused(err error) bool { return refused(err) }

// RunAlone runs the controllers against an API server without other loops, which tell them of objects through the API.
func (u *Upstream) RunAlone(ctx context.Context, config *rest.Config) error {
	c, err := newClients(config, nil)
	if err != nil {
		return err
	}
	s := newKinds(c)
	s.onChange = u.observe
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.run(ctx)
	}()
	defer func() { <-ended }()
	return u.Run(ctx, config)
}

// Keeps says whether one of Loops runs.
func (u *Upstream) Keeps(name string) bool { return u.keeps(name) }
