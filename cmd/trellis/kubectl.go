package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// defaultKubeconfig is the kubeconfig that serve writes with its default --data-dir.
const defaultKubeconfig = ".trellis/admin.kubeconfig"

// defaultCache is kubectl's discovery cache for the server in this folder. It is in the server's data directory,
// because the cache must be deleted with that directory. The next server has the same address but other kinds.
const defaultCache = ".trellis/cache"

// newKubectl returns the subcommand for the help and the completion of trellis. To run kubectl, the function run
// calls embeddedKubectl directly, so that kubectl parses all flags.
func newKubectl() *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [command]",
		Short: "Run kubectl against the server in this folder",
		Long: `Run the unmodified kubectl of this release, with all its commands, flags and plugins.

If neither --kubeconfig nor KUBECONFIG is set, kubectl uses .trellis/admin.kubeconfig, which
"trellis serve" writes. In this case it stores its discovery cache in .trellis/cache, unless
KUBECACHEDIR is set.

If this program has the name kubectl, it runs kubectl. The name can be that of a link or a
copy.`,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			os.Exit(embeddedKubectl(args))
			return nil
		},
	}
}

// embeddedKubectl runs kubectl with the server in this folder as its default.
func embeddedKubectl(args []string) int {
	if os.Getenv("KUBECONFIG") == "" && !namesKubeconfig(args) {
		// The environment variable makes plugins use the same server.
		_ = os.Setenv("KUBECONFIG", defaultKubeconfig)
		if os.Getenv("KUBECACHEDIR") == "" {
			_ = os.Setenv("KUBECACHEDIR", defaultCache)
			_ = os.Mkdir(defaultCache, 0o700) // kubectl would create a folder that other users can read
		}
		if _, err := os.Stat(defaultKubeconfig); errors.Is(err, fs.ErrNotExist) {
			cmdutil.BehaviorOnFatal(explainMissing)
		}
	}
	return kubectl(args)
}

func namesKubeconfig(args []string) bool {
	for _, a := range args {
		if a == "--" {
			return false
		}
		if a == "--kubeconfig" || strings.HasPrefix(a, "--kubeconfig=") {
			return true
		}
	}
	return false
}

const noServerHere = defaultKubeconfig +
	" does not exist: start a server in this folder with \"trellis serve\", or set " +
	"--kubeconfig or KUBECONFIG"

// explainMissing prints the error of a kubectl command that failed because this folder has no server, and exits.
func explainMissing(text string, code int) {
	if text != "" {
		fmt.Fprintln(os.Stderr, strings.TrimSuffix(text, "\n"))
	}
	fmt.Fprintln(os.Stderr, noServerHere)
	os.Exit(code)
}

// kubectl runs a kubectl command line and returns the exit code.
func kubectl(args []string) int {
	stampRelease()
	os.Args[0] = "kubectl" // part of the user agent, which is the default field manager
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().
		WithDiscoveryBurst(300).WithDiscoveryQPS(50).WithWarningPrinter(streams)
	command := cmd.NewDefaultKubectlCommandWithArgs(cmd.KubectlOptions{
		PluginHandler: cmd.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     append([]string{"kubectl"}, args...),
		ConfigFlags:   flags,
		IOStreams:     streams,
	})
	command.SetArgs(args)
	if err := cli.RunNoErrOutput(command); err != nil {
		cmdutil.CheckErr(err) // prints and exits
	}
	return 0
}
