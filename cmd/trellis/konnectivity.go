package main

import "github.com/spf13/cobra"

func newKonnectivity() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "konnectivity",
		Short: "Tunnels from the control plane to the cluster",
		Args:  takes("a subcommand", 0, 0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKonnectivityBench())
	return cmd
}
