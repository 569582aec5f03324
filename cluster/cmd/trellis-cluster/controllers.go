package main

import (
	"github.com/spf13/cobra"

	"github.com/trellis-k8s/trellis/cluster/internal/controllers"
)

func newControllers() *cobra.Command {
	manager := controllers.New()
	cmd := &cobra.Command{
		Use:   "controllers",
		Short: "The controllers alone, with the flags of kube-controller-manager",
		Long: `The controllers of kube-controller-manager, with its flags. Those that the API server runs by itself do not run here,
whatever --controllers says.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return manager.Run(cmd.Context())
		},
	}
	manager.AddFlags(cmd)
	return cmd
}
