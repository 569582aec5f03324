package main

import (
	"context"
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

// socks5Flags are the flags of socks5 as they were typed.
type socks5Flags struct {
	listen string
	remote bool
	server socks5.Server
}

func newSOCKS5() *cobra.Command {
	var f socks5Flags
	cmd := &cobra.Command{
		Use:   "socks5",
		Short: "Run a SOCKS5 proxy, as ssh -D opens one",
		Long: `Run a SOCKS5 proxy until it is interrupted.

It is for machines without an SSH server: run it where the API server can be reached,
and name it as proxy-url in a kubeconfig, or in HTTPS_PROXY. Like the one that "ssh -D"
opens it makes connections (the command CONNECT) to IPv4 and IPv6 addresses and to
names, which it resolves itself, and asks nobody who they are. So it listens on the
loopback interface only, unless it is told to be there for others.`,
		Example: `  trellis socks5
  HTTPS_PROXY=socks5://localhost:1080 kubectl get pods -A`,
		Args: takes("flags only", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	flags, s := cmd.Flags(), &f.server
	flags.StringVar(&f.listen, "listen", "127.0.0.1:1080", "address and port to listen on; port 0 picks a free one")
	flags.BoolVar(&f.remote, "allow-remote-clients", false,
		"listen also where other machines get in: whoever reaches it can then connect to all that this machine reaches")
	flags.IntVar(&s.MaxConnections, "max-connections", socks5.MaxConnections, "how many connections there may be at a time; others are closed at once")
	flags.DurationVar(&s.HandshakeTimeout, "handshake-timeout", socks5.HandshakeTimeout, "how long a client may take to say where it wants to go")
	flags.DurationVar(&s.DialTimeout, "dial-timeout", socks5.DialTimeout, "how long it may take to connect to there")
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
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	l, err := net.ListenTCP("tcp", at)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	fmt.Fprintf(out, "SOCKS5 proxy at socks5://%s\n", l.Addr())
	f.server.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	f.server.Serve(ctx, l)
	return nil
}

// address is where to listen, once all flags make sense.
func (f *socks5Flags) address() (*net.TCPAddr, error) {
	s := &f.server
	if s.MaxConnections <= 0 || s.HandshakeTimeout <= 0 || s.DialTimeout <= 0 {
		return nil, fmt.Errorf("--max-connections, --handshake-timeout and --dial-timeout must be more than 0")
	}
	_, port, err := net.SplitHostPort(f.listen)
	if err == nil && port == "" { // which would be any port
		err = fmt.Errorf("no port in %s", f.listen)
	}
	var at *net.TCPAddr
	if err == nil {
		at, err = net.ResolveTCPAddr("tcp", f.listen)
	}
	if err != nil {
		return nil, fmt.Errorf("--listen: %w; it takes an address and a port, like 127.0.0.1:1080", err)
	}
	if !at.IP.IsLoopback() && !f.remote {
		return nil, fmt.Errorf("--listen: %s is not of the loopback interface: whoever gets there could connect to all that this machine reaches; say --allow-remote-clients if that is meant", f.listen)
	}
	return at, nil
}
