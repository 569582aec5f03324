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
)

func newKonnectivity() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "konnectivity",
		Short: "Tunnels from the control plane into the cluster",
		Long: `Konnectivity is a proxy for connections from the API server to nodes, Pods and Services that it cannot reach:
agents in the cluster connect to a server beside the API server, which dials through them.`,
		SuggestionsMinimumDistance: 2, // as trellis itself
		Args:                       noSuchCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKonnectivityServer(), newKonnectivityAgent(), newKonnectivityBench())
	return cmd
}

// maxVerbosity of klog: above it client-go logs bodies, and with them tokens.
const maxVerbosity = 7

// klogFlags declares klog's flags, which work as those of the reference do. The function that it returns, called when they are
// parsed, gives the logger that goes by them.
func klogFlags(flags *pflag.FlagSet) (logger func() *slog.Logger) {
	flags.SetNormalizeFunc(cliflag.WordSepNormalizeFunc) // they are known by both
	theirs := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(theirs)
	theirs.VisitAll(func(f *flag.Flag) {
		if f.Name == "vmodule" {
			fix(flags, f.Name, "string", "", "verbosity by file, by which client-go could be made to log tokens")
			return
		}
		own := pflag.PFlagFromGoFlag(f)
		own.Name = strings.ReplaceAll(own.Name, "_", "-")
		flags.AddFlag(own)
	})
	v := flags.Lookup("v")
	v.Usage += ", at most " + strconv.Itoa(maxVerbosity)
	return func() *slog.Logger {
		if n, err := strconv.Atoi(v.Value.String()); err == nil && n > maxVerbosity {
			_ = v.Value.Set(strconv.Itoa(maxVerbosity))
		}
		return slog.New(logr.ToSlogHandler(klog.NewKlogr()))
	}
}
