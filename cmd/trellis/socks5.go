package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/trellis-k8s/trellis/internal/socks5"
)

// socks5Flags holds the values of the flags of socks5.
type socks5Flags struct {
	listen string
	remote bool
	server socks5.Server
}

func newSOCKS5() *cobra.Command {
	var f socks5Flags
	cmd := &cobra.Command{
		Use:   "socks5",
		Short: "Run a SOCKS5 proxy, like ssh -D",
		Long: `Run a SOCKS5 proxy until it is interrupted.

Use the proxy instead of "ssh -D" if no SSH server is available. Run it on a machine that
can reach the API server. Then set the address of the proxy as proxy-url in a kubeconfig or
as HTTPS_PROXY. The proxy supports the SOCKS5 command CONNECT with IPv4 addresses, IPv6
addresses and host names. It resolves the host names itself. The proxy does not
authenticate clients. So it listens only on a loopback address, unless
--allow-remote-clients is set.`,
		Example: `  trellis socks5
  HTTPS_PROXY=socks5://localhost:1080 kubectl get pods -A`,
		Args: takes("no arguments", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	flags, s := cmd.Flags(), &f.server
	flags.StringVar(&f.listen, "listen", "127.0.0.1:1080", "address and port to listen on (port 0 means a free port)")
	flags.BoolVar(&f.remote, "allow-remote-clients", false,
		"permit a --listen address that is not a loopback address. Every client that can reach the proxy can then "+
			"connect to every address that this machine can reach")
	flags.IntVar(&s.MaxConnections, "max-connections", socks5.MaxConnections,
		"maximum number of open connections. The proxy closes further connections immediately")
	flags.DurationVar(&s.HandshakeTimeout, "handshake-timeout", socks5.HandshakeTimeout,
		"timeout for the SOCKS5 request of a client")
	flags.DurationVar(&s.DialTimeout, "dial-timeout", socks5.DialTimeout, "timeout for a connection to a destination")
	return cmd
}

// run serves until ctx is done or a signal arrives.
func (f *socks5Flags) run(ctx context.Context, out io.Writer) error {
	at, err := f.address()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program immediately
	l, err := net.ListenTCP("tcp", at)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	fmt.Fprintf(out, "SOCKS5 proxy at socks5://%s\n", l.Addr())
	f.server.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	f.server.Serve(ctx, l)
	return nil
}

// address validates the flags and returns the address to listen on.
func (f *socks5Flags) address() (*net.TCPAddr, error) {
	s := &f.server
	if s.MaxConnections <= 0 || s.HandshakeTimeout <= 0 || s.DialTimeout <= 0 {
		return nil, errors.New("--max-connections, --handshake-timeout and --dial-timeout must be greater than 0")
	}
	_, port, err := net.SplitHostPort(f.listen)
	if err == nil && port == "" { // without a port, the net package would choose a free port
		err = fmt.Errorf("missing port in %s", f.listen)
	}
	var at *net.TCPAddr
	if err == nil {
		at, err = net.ResolveTCPAddr("tcp", f.listen)
	}
	if err != nil {
		return nil, fmt.Errorf("--listen: %w; specify an address and a port, such as 127.0.0.1:1080", err)
	}
	if !at.IP.IsLoopback() && !f.remote {
		return nil, fmt.Errorf("--listen: %s is not a loopback address: every client that can reach the proxy could "+
			"connect to every address that this machine can reach. To permit this, set "+
			"--allow-remote-clients", f.listen)
	}
	return at, nil
}
