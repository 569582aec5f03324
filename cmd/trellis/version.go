package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// kubernetesModule is the module whose version is the release of Kubernetes.
const kubernetesModule = "k8s.io/apimachinery"

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of Trellis and of the Kubernetes API",
		Args:  takes("no arguments", 0, 0),
		Run: func(cmd *cobra.Command, _ []string) {
			own, kubernetes := versions()
			fmt.Fprintf(cmd.OutOrStdout(), "trellis %s, Kubernetes API %s, %s %s/%s\n",
				own, kubernetes, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}

// versions returns the version of this module and the version of Kubernetes. Both are in the build information of the
// program.
func versions() (own, kubernetes string) {
	own, kubernetes = "(unknown)", "v1.37"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return own, kubernetes
	}
	own = info.Main.Version
	for _, m := range info.Deps {
		if m.Path == kubernetesModule {
			kubernetes = "v1" + m.Version[len("v0"):]
		}
	}
	return own, kubernetes
}
