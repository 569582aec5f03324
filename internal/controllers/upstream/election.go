package upstream

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

// runWhileLeader calls run each time this process acquires the Lease of kube-controller-manager, until ctx is done. The
// context of run is cancelled when the Lease is lost. The Lease is released after run has returned, so that no two
// processes run the controllers at the same time.
func (u *Manager) runWhileLeader(ctx context.Context, run func(context.Context)) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("get the host name for leader election: %w", err)
	}
	terms := make(chan context.Context)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-controller-manager"},
			Client:     u.client.CoordinationV1(),
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
	for {
		select {
		case term := <-terms:
			term, cancel := context.WithCancel(term)
			stop := context.AfterFunc(ctx, cancel)
			run(term)
			stop()
			cancel()
		case <-ctx.Done():
			return nil
		}
	}
}
