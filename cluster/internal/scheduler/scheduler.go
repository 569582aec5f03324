// Package scheduler is upstream's kube-scheduler. It takes configurations of versions that upstream has dropped.
package scheduler

import (
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
)

// Name is that of upstream's program.
const Name = "kube-scheduler"

// Command is upstream's. It heeds signals, and exits the process when it leads no longer.
func Command() *cobra.Command {
	acceptOld(scheme.Scheme, warn)
	return app.NewSchedulerCommand()
}

func warn(what string) { klog.Background().Info("Warning: " + what) }
