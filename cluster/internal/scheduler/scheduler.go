// Package scheduler is upstream's kube-scheduler. It takes configurations of versions that upstream has dropped, and can run beside
// other parts in one process. It knows nothing of these.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
)

// Name is that of upstream's program.
const Name = "kube-scheduler"

// Command is upstream's, and has the process for itself: it heeds signals, and exits when it leads no longer.
func Command() *cobra.Command {
	acceptOld(scheme.Scheme, warn)
	return app.NewSchedulerCommand()
}

func warn(what string) { klog.Background().Info("Warning: " + what) }

// Scheduler is one beside other parts of the process.
type Scheduler struct {
	options *options.Options
}

// Parse returns one with flags of upstream's.
func Parse(args []string) (*Scheduler, error) {
	acceptOld(scheme.Scheme, warn)
	o := options.NewOptions()
	flags := pflag.NewFlagSet(Name, pflag.ContinueOnError)
	for _, set := range o.Flags.FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(args); err != nil {
		return nil, fmt.Errorf("flags of %s: %w", Name, err)
	}
	return &Scheduler{o}, nil
}

// Run runs the scheduler until ctx is done, or until it leads no longer, which is an error.
func (s *Scheduler) Run(ctx context.Context) error {
	config, scheduler, err := app.Setup(ctx, s.options)
	if err != nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	election := config.LeaderElection
	if election == nil {
		return ended(ctx, app.Run(ctx, config, scheduler))
	}
	// Upstream's own election exits the process.
	config.LeaderElection, config.ComponentConfig.LeaderElection.LeaderElect = nil, false
	var led atomic.Bool
	ran := make(chan error, 1)
	election.Callbacks = leaderelection.LeaderCallbacks{
		OnStartedLeading: func(term context.Context) {
			led.Store(true)
			ran <- app.Run(term, config, scheduler)
		},
		OnStoppedLeading: func() {},
	}
	leaderelection.RunOrDie(ctx, *election)
	if !led.Load() {
		return nil
	}
	return ended(ctx, <-ran)
}

// ended is why a scheduler has ended that was not asked to.
func ended(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		err = errors.New("it leads no longer")
	}
	return fmt.Errorf("%s: %w", Name, err)
}
