package main

import (
	"github.com/spf13/cobra"

	"github.com/trellis-k8s/trellis/cluster/internal/scheduler"
)

func newScheduler() *cobra.Command {
	cmd := scheduler.Command()
	cmd.Use, cmd.Short = "scheduler", "Run only the scheduler, with the flags and the configuration of kube-scheduler"
	return cmd
}
