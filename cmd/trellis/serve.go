package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/apiserver/options"
	"github.com/trellis-k8s/trellis/internal/controllers/manifests"
)

// serveFlags holds the values of the flags of serve.
type serveFlags struct {
	options.Options
	apply []string
}

func newServe() *cobra.Command {
	f := serveFlags{Options: newOptions()}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the API server",
		Long: `Run the API server until it is interrupted.

No configuration is needed. The first start creates a cluster CA, a serving certificate
and an administrator's kubeconfig in the data directory. Later starts use them again.
The server responds to a write after the write is on disk.`,
		Example: `  # Start a server in this folder, and create a custom kind and an object of the kind
  trellis serve --apply examples/crontab

  # Start a temporary server on a free port
  trellis serve --data-dir "$(mktemp -d)" --secure-port 0`,
		Args: takes("no arguments", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.Complete(cmd.Flags()); err != nil {
				return err
			}
			return serve(cmd.Context(), &f, cmd.OutOrStdout())
		},
	}
	groupFlags(cmd, f.bind())
	return cmd
}

// newOptions returns the options of a server that logs warnings to stderr.
func newOptions() (o options.Options) {
	o.DataDir = filepath.Dir(defaultKubeconfig)
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return o
}

// bind declares the flags in groups.
func (f *serveFlags) bind() *cliflag.NamedFlagSets {
	var groups cliflag.NamedFlagSets
	f.AddFlags(&groups)
	groups.FlagSet("common").StringArrayVar(&f.apply, "apply", nil,
		"file or folder of manifests to apply at the start; can be repeated. CustomResourceDefinitions are applied "+
			"first")
	return &groups
}

// serve runs a server until ctx is done, a signal arrives, or the server fails.
func serve(ctx context.Context, f *serveFlags, out io.Writer) error {
	began := time.Now()
	if os.Getenv("GOGC") == "" {
		paceCollector()
	}
	if limit := limitMemory(os.DirFS("/")); f.MemoryBudget == 0 {
		f.MemoryBudget = budgetFor(limit)
	}
	klog.SetSlogLogger(f.Logger)    // packages of Kubernetes log the start and the end of each of their loops
	utilruntime.ReallyCrash = false // a panic in one of their loops is logged and does not end the server
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	go releaseMemory(ctx)
	server, err := apiserver.Start(ctx, f.Config)
	if err != nil {
		return err
	}
	if err := manifests.Apply(ctx, server.Loopback(), f.apply, out); err != nil {
		_ = server.Shutdown()
		return fmt.Errorf("--apply: %w", err)
	}
	printReady(out, server, f, time.Since(began))
	select {
	case <-ctx.Done():
		stop() // a second signal ends the program immediately
		fmt.Fprintln(out, "shutting down")
	case <-server.Failed():
	}
	return server.Shutdown()
}

// printReady prints the address of the server and the next commands to type.
func printReady(out io.Writer, server *apiserver.Server, f *serveFlags, took time.Duration) {
	kubeconfig := filepath.Join(f.DataDir, apiserver.KubeconfigName)
	kubectl := "kubectl --kubeconfig " + kubeconfig
	if kubeconfig == defaultKubeconfig {
		kubectl = "trellis kubectl"
	}
	fmt.Fprintf(out, `
Trellis is ready at %s after %d ms.
Its kubeconfig is %s.

Next, in another terminal:
  %s get namespaces
  %s api-resources
`, server.URL(), took.Milliseconds(), kubeconfig, kubectl, kubectl)
}
