// Package extension is an API server of your own behind Trellis or kube-apiserver: kinds, and what you add to them in Go. The main
// server makes it part of its API (https://kubernetes.io/docs/tasks/extend-kubernetes/setup-extension-api-server/); this one
// keeps the objects itself, and asks the main server who somebody is and what they may do. docs/extension-server.md begins at go mod init.
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

// Main is a program: it serves c, or what flags say instead, until it is interrupted, and ends the process.
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

// run serves until ctx is done.
func run(ctx context.Context, c Config, args []string, out io.Writer) error {
	c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	flags := pflag.NewFlagSet(filepath.Base(args[0]), pflag.ContinueOnError)
	address := c.bind(flags)
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("there are flags only, and not %q", flags.Arg(0))
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

// bind declares the flags, which have upstream's names and meaning, and returns how to read the address off them.
func (c *Config) bind(flags *pflag.FlagSet) (address func() string) {
	ip := flags.IP("bind-address", net.IPv4zero, "IP address to listen on")
	port := flags.Uint16("secure-port", 443, "port to serve HTTPS on; 0 picks a free one")
	flags.StringVar(&c.DataDir, "data-dir", c.DataDir, "folder that objects are kept in; without it they are kept in memory")
	flags.Int64Var(&c.AcceptLossAfter, "accept-data-loss-after", c.AcceptLossAfter, "last revision to keep of a damaged --data-dir, as the error of the start names it; by default such a folder is refused")
	flags.StringVar(&c.CertFile, "tls-cert-file", c.CertFile, "file of the certificate to serve with, for SERVICE.NAMESPACE.svc; read again when it changes; by default one of a CA of its own")
	flags.StringVar(&c.KeyFile, "tls-private-key-file", c.KeyFile, "file of its private key")
	flags.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "kubeconfig of the main server; by default that of the Pod")
	flags.StringVar(&c.AuthenticationKubeconfig, "authentication-kubeconfig", c.AuthenticationKubeconfig, "kubeconfig for asking it who somebody is, instead")
	flags.StringVar(&c.AuthorizationKubeconfig, "authorization-kubeconfig", c.AuthorizationKubeconfig, "kubeconfig for asking it what somebody may do, instead")

	a := &c.Authentication
	flags.BoolVar(&a.SkipLookup, "authentication-skip-lookup", a.SkipLookup, "do not look into the ConfigMap extension-apiserver-authentication for what is not said here")
	flags.BoolVar(&a.TolerateLookupFailure, "authentication-tolerate-lookup-failure", a.TolerateLookupFailure, "go on where that fails")
	flags.StringVar(&a.ClientCAFile, "client-ca-file", a.ClientCAFile, "file of CAs that sign the certificates of users, instead of the ConfigMap's")
	h := &a.RequestHeader
	flags.StringVar(&h.CAFile, "requestheader-client-ca-file", h.CAFile, "file of CAs that sign the client certificate of the main server; with it, what the ConfigMap says of headers does not count")
	flags.StringSliceVar(&h.AllowedNames, "requestheader-allowed-names", h.AllowedNames, "common names that this certificate may have; none: any")
	flags.StringSliceVar(&h.UsernameHeaders, "requestheader-username-headers", orDefault(h.UsernameHeaders, "x-remote-user"), "headers that say who asks, the first that is there")
	flags.StringSliceVar(&h.UIDHeaders, "requestheader-uid-headers", h.UIDHeaders, "headers of the user's UID")
	flags.StringSliceVar(&h.GroupHeaders, "requestheader-group-headers", orDefault(h.GroupHeaders, "x-remote-group"), "headers of the user's groups")
	flags.StringSliceVar(&h.ExtraHeaderPrefixes, "requestheader-extra-headers-prefix", orDefault(h.ExtraHeaderPrefixes, "x-remote-extra-"), "what headers begin with that say more of the user")
	return func() string {
		if c.Address != "" && !flags.Changed("bind-address") && !flags.Changed("secure-port") {
			return c.Address
		}
		return net.JoinHostPort(ip.String(), strconv.Itoa(int(*port)))
	}
}

func orDefault(said []string, otherwise string) []string {
	if said != nil {
		return said
	}
	return []string{otherwise}
}
