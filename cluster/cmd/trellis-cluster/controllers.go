package main

import (
	"github.com/spf13/cobra"

	"github.com/trellis-k8s/trellis/cluster/internal/controllers"
)

func newControllers() *cobra.Command {
	manager := controllers.New()
	cmd := &cobra.Command{
		Use:   "controllers",
		Short: "Run only the controllers, with the flags of kube-controller-manager",
		Long: `Run the controllers of kube-controller-manager, with its flags.

Controllers that the API server itself runs do not run here, even if --controllers names them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return manager.Run(cmd.Context())
		},
	}
	manager.AddFlags(cmd)
	return cmd
}
