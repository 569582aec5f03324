package controllers

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// runWhileLeader calls run whenever this process holds the Lease of kube-controller-manager, with a context that ends when it does so no
// longer, until ctx is done. The Lease is given up when run has ended: no two processes run at a time.
func (u *Upstream) runWhileLeader(ctx context.Context, run func(context.Context)) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("the name of this host, to stand for election: %w", err)
	}
	terms := make(chan context.Context)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-controller-manager"},
			Client:     u.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + uuid.NewString()},
		},
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, // kube-controller-manager's
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(term context.Context) {
				select {
				case terms <- term:
				case <-term.Done():
				}
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("election of a leader: %w", err)
	}
	standing, retire := context.WithCancel(context.WithoutCancel(ctx))
	var candidacy sync.WaitGroup
	defer candidacy.Wait()
	defer retire()
	candidacy.Go(func() {
		for standing.Err() == nil {
			elector.Run(standing)
		}
	})
	for {
		select {
		case term := <-terms:
			term, end := context.WithCancel(term)
			forget := context.AfterFunc(ctx, end)
			run(term)
			forget()
			end()
		case <-ctx.Done():
			return nil
		}
	}
}
