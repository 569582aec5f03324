package main

import "github.com/spf13/cobra"

func newKonnectivity() *cobra.Command {
	cmd := &cobra.Command{Use: "konnectivity", Short: "Tunnels from the API server into the cluster", Args: takes("a command", 0, 0)}
	cmd.AddCommand(newKonnectivityAgent())
	return cmd
}
