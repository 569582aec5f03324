// Package extension implements extension API servers for kinds with custom Go code. Such a server runs behind a main
// server, which is Trellis or kube-apiserver. The main server aggregates it into its API
// (https://kubernetes.io/docs/tasks/extend-kubernetes/setup-extension-api-server/). The extension server stores the
// objects itself and delegates authentication and authorization to the main server. docs/extension-server.md is a
// tutorial.
package extension

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/pflag"
)

// Main is the main function of an extension server. It serves c until the process is interrupted, and then exits.
// Command-line flags override c.
func Main(c Config) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, c, os.Args, os.Stdout)
	stop()
	if errors.Is(err, pflag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run parses the flags in args and serves until ctx is done.
func run(ctx context.Context, c Config, args []string, out io.Writer) error {
	c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	flags := pflag.NewFlagSet(filepath.Base(args[0]), pflag.ContinueOnError)
	address := c.bind(flags)
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: only flags are accepted", flags.Arg(0))
	}
	c.Address = address()
	s, err := Start(ctx, c)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "serving at %s\n", s.URL())
	select {
	case <-ctx.Done():
	case <-s.Failed():
	}
	return s.Shutdown()
}

// bind declares the flags. They have the same names and meanings as the flags of k8s.io/apiserver. It returns a
// function that returns the listening address. Callers must parse the flags before they call this function.
func (c *Config) bind(flags *pflag.FlagSet) (address func() string) {
	ip := flags.IP("bind-address", net.IPv4zero, "IP address to listen on")
	port := flags.Uint16("secure-port", 443, "HTTPS port (0 means a free port)")
	flags.StringVar(&c.DataDir, "data-dir", c.DataDir,
		"directory of the stored objects (empty means that they are in memory)")
	flags.Int64Var(&c.AcceptLossAfter, "accept-data-loss-after", c.AcceptLossAfter,
		"last revision to keep when the server opens a damaged --data-dir. The error at the start contains the "+
			"value. 0 means that the server does not start with a damaged directory")
	flags.StringVar(&c.CertFile, "tls-cert-file", c.CertFile,
		"file with the serving certificate for SERVICE.NAMESPACE.svc. The server reloads the file when it changes "+
			"(empty means a certificate of a self-generated CA)")
	flags.StringVar(&c.KeyFile, "tls-private-key-file", c.KeyFile, "file with the private key of --tls-cert-file")
	flags.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig,
		"kubeconfig file for the main server (empty means the in-cluster configuration of the Pod)")
	flags.StringVar(&c.AuthenticationKubeconfig, "authentication-kubeconfig", c.AuthenticationKubeconfig,
		"kubeconfig file for authentication requests to the main server (empty means --kubeconfig)")
	flags.StringVar(&c.AuthorizationKubeconfig, "authorization-kubeconfig", c.AuthorizationKubeconfig,
		"kubeconfig file for authorization requests to the main server (empty means --kubeconfig)")

	a := &c.Authentication
	flags.BoolVar(&a.SkipLookup, "authentication-skip-lookup", a.SkipLookup,
		"do not read settings that are not set from the ConfigMap extension-apiserver-authentication")
	flags.BoolVar(&a.TolerateLookupFailure, "authentication-tolerate-lookup-failure", a.TolerateLookupFailure,
		"start even if the ConfigMap extension-apiserver-authentication cannot be read")
	flags.StringVar(&a.ClientCAFile, "client-ca-file", a.ClientCAFile,
		"file with the CAs for the certificates of users (empty means the CAs in the ConfigMap "+
			"extension-apiserver-authentication)")
	h := &a.RequestHeader
	flags.StringVar(&h.CAFile, "requestheader-client-ca-file", h.CAFile,
		"file with the CAs for the client certificate of the main server. If it is set, the header settings in the "+
			"ConfigMap extension-apiserver-authentication are ignored")
	flags.StringSliceVar(&h.AllowedNames, "requestheader-allowed-names", h.AllowedNames,
		"allowed common names of the client certificate of the main server (empty means any name)")
	flags.StringSliceVar(&h.UsernameHeaders, "requestheader-username-headers",
		orDefault(h.UsernameHeaders, "x-remote-user"),
		"headers with the user name. The first header that is set is used")
	flags.StringSliceVar(&h.UIDHeaders, "requestheader-uid-headers", h.UIDHeaders, "headers with the UID of the user")
	flags.StringSliceVar(&h.GroupHeaders, "requestheader-group-headers", orDefault(h.GroupHeaders, "x-remote-group"),
		"headers with the groups of the user")
	flags.StringSliceVar(&h.ExtraHeaderPrefixes, "requestheader-extra-headers-prefix",
		orDefault(h.ExtraHeaderPrefixes, "x-remote-extra-"),
		"prefixes of headers with extra information about the user")
	return func() string {
		if c.Address != "" && !flags.Changed("bind-address") && !flags.Changed("secure-port") {
			return c.Address
		}
		return net.JoinHostPort(ip.String(), strconv.Itoa(int(*port)))
	}
}

func orDefault(values []string, fallback string) []string {
	if values != nil {
		return values
	}
	return []string{fallback}
}
