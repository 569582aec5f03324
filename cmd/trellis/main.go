// Command trellis is an extensible Kubernetes API server in one program, with kubectl inside.
// Each subcommand is one small file: flags in, one call out.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/trellis-k8s/trellis/cmd/trellis/internal/locale"
)

func main() {
	os.Exit(run(os.Args))
}

// run runs one command line and returns the exit code.
func run(args []string) int {
	switch {
	case locale.Named(args):
		return kubectl(args[1:])
	case locale.IsKubectl(args) && args[1] == "kubectl":
		return embeddedKubectl(args[2:])
	case locale.IsKubectl(args): // completion of "trellis kubectl …" is kubectl's own
		return embeddedKubectl(append([]string{args[1]}, args[3:]...))
	}
	root := newRoot()
	root.SetArgs(args[1:])
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "trellis",
		Short: "An extensible Kubernetes API server in one small program",
		Long: `Trellis is the part of Kubernetes that other people extend: an API server with
CustomResourceDefinitions, storage and garbage collection, in one program.

Start a server in this folder, then talk to it from a second terminal:

  trellis serve
  trellis kubectl get namespaces

Everything it keeps lies in .trellis; remove the folder to start afresh.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(newServe(), newCheck(), newMigrate(), newKubectl(), newVersion())
	return root
}
