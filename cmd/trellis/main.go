// Command trellis is a Kubernetes API server in one program, with kubectl and other tools. Each file declares the
// flags of a subcommand. The packages that it calls implement the subcommand.
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
		return execute(newEtcdStub(), args[1:])
	case name == "proxy-server":
		return execute(named(name, newKonnectivityServer()), args[1:])
	case name == "proxy-agent":
		return execute(named(name, newKonnectivityAgent()), args[1:])
	case locale.IsKubectl(args) && args[1] == "kubectl":
		return embeddedKubectl(args[2:])
	case locale.IsKubectl(args): // kubectl completes "trellis kubectl …"
		return embeddedKubectl(append([]string{args[1]}, args[3:]...))
	}
	return execute(newRoot(), args[1:])
}

// named returns cmd with another name: that of the program.
func named(name string, cmd *cobra.Command) *cobra.Command {
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
		Short: "A Kubernetes API server in one program",
		Long: `Trellis is a Kubernetes API server in one program. It supports CustomResourceDefinitions,
RBAC, admission, watches and server-side apply. It needs no etcd and no cluster.

Start a server in the current folder:

  trellis serve

Use the server from a second terminal in the same folder:

  trellis kubectl get namespaces

The server stores all its state in the folder .trellis. To start with an empty store, stop
the server and remove this folder.`,
		SuggestionsMinimumDistance: 2, // cobra's default. cobra sets it only if it writes the error message itself.
		Args:                       noSuchCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(newServe(), newCheck(), newMigrate(), newWhy(), newCerts(), newExtension(), newKonnectivity(),
		newSOCKS5(), newKubectl(), newEnvtest(), newVersion())
	return root
}

// wrongFlag returns the error for an unknown or invalid flag. If an unknown subcommand precedes the flag, it returns
// the error for this subcommand.
func wrongFlag(cmd *cobra.Command, err error) error {
	if before := cmd.Flags().Args(); cmd.HasSubCommands() && len(before) > 0 {
		return noSuchCommand(cmd, before)
	}
	return seeHelp(cmd, err)
}

// seeHelp adds the command that shows the help to an error about a command line.
func seeHelp(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())
}

// noSuchCommand rejects every argument of a command that only has subcommands, as an unknown command.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, near[0])
	}
	return seeHelp(cmd, err)
}

// takes returns a function that checks the number of arguments. The error contains the text in the parameter
// arguments.
func takes(arguments string, least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return seeHelp(cmd, fmt.Errorf("%s accepts %s, got %d", cmd.CommandPath(), arguments, len(args)))
		}
		return nil
	}
}
