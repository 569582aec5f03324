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

// defaultKubeconfig is what serve writes with its default --data-dir.
const defaultKubeconfig = ".trellis/admin.kubeconfig"

// defaultCache is kubectl's cache of what the server of this folder serves. It is deleted with the server's data, because the next server
// has the same address and other kinds.
const defaultCache = ".trellis/cache"

// newKubectl is here for help and completion; run calls embeddedKubectl directly, so
// that every flag is kubectl's.
func newKubectl() *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [command]",
		Short: "The kubectl of this release, talking to the server of this folder",
		Long: `The kubectl of this release, unmodified: all its commands, flags and plugins.

With neither --kubeconfig nor KUBECONFIG it uses .trellis/admin.kubeconfig, which
"trellis serve" writes, and keeps its discovery cache in .trellis/cache (KUBECACHEDIR
names another folder). A link or a copy of this program named kubectl is kubectl.`,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			os.Exit(embeddedKubectl(args))
			return nil
		},
	}
}

// embeddedKubectl is kubectl with the server of this folder as its default.
func embeddedKubectl(args []string) int {
	if os.Getenv("KUBECONFIG") == "" && !namesKubeconfig(args) {
		// By the environment, so that plugins find the same server.
		_ = os.Setenv("KUBECONFIG", defaultKubeconfig)
		if os.Getenv("KUBECACHEDIR") == "" {
			_ = os.Setenv("KUBECACHEDIR", defaultCache)
			_ = os.Mkdir(defaultCache, 0o700) // kubectl would make one that others may read; without a server it fails anyway
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

const noServerHere = defaultKubeconfig + " does not exist: start a server in this folder with \"trellis serve\", or name another kubeconfig with --kubeconfig or KUBECONFIG"

// explainMissing ends a kubectl that failed because nobody has started a server here.
func explainMissing(text string, code int) {
	if text != "" {
		fmt.Fprintln(os.Stderr, strings.TrimSuffix(text, "\n"))
	}
	fmt.Fprintln(os.Stderr, noServerHere)
	os.Exit(code)
}

// kubectl runs one kubectl command line as the program of that name does.
func kubectl(args []string) int {
	stampRelease()
	os.Args[0] = "kubectl" // the user agent, from which servers take the field manager that a command does not name
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
