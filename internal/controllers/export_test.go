package controllers

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	client "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/utils/clock"
)

// Unwritten returns the number of reports that are not written yet.
func (r *Reachability) Unwritten() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.latest)
}

// WatchKinds watches the objects of all kinds through the API until ctx is done, and calls onObject for each of them
// and for each change.
func WatchKinds(
	ctx context.Context, config *rest.Config,
	onObject func(resource string, m *metav1.PartialObjectMetadata, deleted bool),
) error {
	c, err := newClients(config, nil)
	if err != nil {
		return err
	}
	s := newKindWatchers(c)
	s.onChange = func(ch change) {
		for _, m := range ch.objects() {
			onObject(ch.kind.Resource, m, ch.deleted)
		}
	}
	s.run(ctx)
	return nil
}

// WithClock sets the clock and returns a.
func (a *APIServices) WithClock(c clock.PassiveClock) *APIServices {
	a.clock = c
	return a
}

// Sync reconciles one APIService.
func (a *APIServices) Sync(ctx context.Context, c client.APIServiceInterface, name string) error {
	return a.sync(ctx, c, name)
}

// IsPermanent exports isPermanent.
func IsPermanent(err error) bool { return isPermanent(err) }

// RunStandalone runs the controllers without those of Trellis. They watch the objects through the API.
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

// TrellisEnabled reports whether one of TrellisControllers is enabled.
func (u *Upstream) TrellisEnabled(name string) bool { return u.trellisEnabled(name) }
