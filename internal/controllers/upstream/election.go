package upstream

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// RunElected calls lead each time this process acquires the Lease of kube-controller-manager, and follow in the time
// between, until ctx is done. The calls do not overlap. The context of lead is cancelled when the Lease is lost. The
// Lease is released after lead has returned, so that no two processes lead at the same time.
func RunElected(ctx context.Context, config *rest.Config, follow, lead func(context.Context)) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("get the host name for leader election: %w", err)
	}
	client, err := coordinationv1.NewForConfig(asManager(config))
	if err != nil {
		return fmt.Errorf("create client for leader election: %w", err)
	}
	terms := make(chan context.Context)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-controller-manager"},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + uuid.NewString()},
		},
		// as kube-controller-manager
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
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
		return fmt.Errorf("create leader elector: %w", err)
	}
	electionCtx, stopElection := context.WithCancel(context.WithoutCancel(ctx))
	var election sync.WaitGroup
	defer election.Wait()
	defer stopElection()
	election.Go(func() {
		for electionCtx.Err() == nil {
			elector.Run(electionCtx)
		}
	})
	for ctx.Err() == nil {
		var following sync.WaitGroup
		followCtx, stopFollowing := context.WithCancel(ctx)
		following.Go(func() { follow(followCtx) })
		var term context.Context
		select {
		case term = <-terms:
		case <-ctx.Done():
		}
		stopFollowing()
		following.Wait()
		if term != nil {
			term, cancel := context.WithCancel(term)
			stop := context.AfterFunc(ctx, cancel)
			lead(term)
			stop()
			cancel()
		}
	}
	return nil
}
