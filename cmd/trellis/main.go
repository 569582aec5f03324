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
	switch name := locale.Program(args); {
	case name == "kubectl":
		return kubectl(args[1:])
	case name == "kube-apiserver":
		return execute(newKubeAPIServer(), args[1:])
	case name == "etcd":
		return execute(newStandIn(), args[1:])
	case name == "proxy-server":
		return execute(called(name, newKonnectivityServer()), args[1:])
	case name == "proxy-agent":
		return execute(called(name, newKonnectivityAgent()), args[1:])
	case locale.IsKubectl(args) && args[1] == "kubectl":
		return embeddedKubectl(args[2:])
	case locale.IsKubectl(args): // completion of "trellis kubectl …" is kubectl's own
		return embeddedKubectl(append([]string{args[1]}, args[3:]...))
	}
	return execute(newRoot(), args[1:])
}

// called is a subcommand that the program is called as.
func called(name string, cmd *cobra.Command) *cobra.Command {
	cmd.Use = name
	return cmd
}

// execute runs a command that is not kubectl.
func execute(cmd *cobra.Command, args []string) int {
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(wrongFlag)
	cmd.SetArgs(args)
	if err := cmd.Execute(); err != nil {
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
		SuggestionsMinimumDistance: 2, // cobra's own, which only its own message sets
		Args:                       noSuchCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(newServe(), newCheck(), newMigrate(), newWhy(), newCerts(), newExtension(), newKonnectivity(), newSOCKS5(), newKubectl(), newEnvtest(), newVersion())
	return root
}

// wrongFlag tells of a flag that cannot be; where it stands behind a command that there is not, of that.
func wrongFlag(cmd *cobra.Command, err error) error {
	if before := cmd.Flags().Args(); cmd.HasSubCommands() && len(before) > 0 {
		return noSuchCommand(cmd, before)
	}
	return seeHelp(cmd, err)
}

// seeHelp says of a mistake in a command line where to read what is right.
func seeHelp(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())
}

// noSuchCommand refuses all arguments of a command that has but subcommands.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("there is no command %q", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, near[0])
	}
	return seeHelp(cmd, err)
}

// takes lets a command have so many arguments, which are what.
func takes(what string, least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return seeHelp(cmd, fmt.Errorf("%s takes %s, and got %d", cmd.CommandPath(), what, len(args)))
		}
		return nil
	}
}
