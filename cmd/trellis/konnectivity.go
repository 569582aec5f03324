package main

import (
	"flag"
	"log/slog"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/internal/flags"
)

func newKonnectivity() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "konnectivity",
		Short: "Run Konnectivity servers and agents: tunnels into a cluster network",
		Long: `Konnectivity is a proxy. With it, an API server can connect to nodes, Pods and Services that it cannot
reach directly. Agents in the cluster keep connections to a Konnectivity server near the API server. The API server
connects to the cluster through these connections.`,
		SuggestionsMinimumDistance: 2, // as in newRoot
		Args:                       noSuchCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKonnectivityServer(), newKonnectivityAgent())
	return cmd
}

// maxVerbosity is the highest verbosity of klog. Above it, client-go logs bodies, which contain tokens.
const maxVerbosity = 7

// klogFlags declares klog's flags, as the reference programs do. It returns a function that returns the logger that
// the flags configure. Callers must parse the flags before they call this function.
func klogFlags(fs *pflag.FlagSet) (logger func() *slog.Logger) {
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc) // accepts - and _ in names
	klogSet := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(klogSet)
	klogSet.VisitAll(func(f *flag.Flag) {
		if f.Name == "vmodule" {
			flags.Fixed(fs, f.Name, "string", "",
				"log verbosity for each source file. With other values, client-go could log tokens")
			return
		}
		added := pflag.PFlagFromGoFlag(f)
		added.Name = strings.ReplaceAll(added.Name, "_", "-")
		fs.AddFlag(added)
	})
	v := fs.Lookup("v")
	v.Usage += ", at most " + strconv.Itoa(maxVerbosity)
	return func() *slog.Logger {
		if n, err := strconv.Atoi(v.Value.String()); err == nil && n > maxVerbosity {
			_ = v.Value.Set(strconv.Itoa(maxVerbosity))
		}
		return slog.New(logr.ToSlogHandler(klog.NewKlogr()))
	}
}
