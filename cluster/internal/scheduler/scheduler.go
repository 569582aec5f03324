// Package scheduler runs upstream's kube-scheduler. In addition, it supports versions of the configuration that
// upstream has removed. It must not import other packages of this module.
package scheduler

import (
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
)

// Name is the file name of upstream's program.
const Name = "kube-scheduler"

// Command returns upstream's command. The command handles signals, and exits the process when it loses its Lease. A
// process may call Command only once, because Command changes upstream's global scheme.
func Command() *cobra.Command {
	addRemovedVersions(scheme.Scheme, warn)
	return app.NewSchedulerCommand()
}

func warn(message string) { klog.Background().Info("Warning: " + message) }
