package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"

	ours "github.com/trellis-k8s/trellis/internal/konnectivity/client"
	"github.com/trellis-k8s/trellis/internal/proxydial"
)

// How the front talks to the tunnel server, each side as its API server does: with GRPC kube-apiserver opens a connection to it for each
// dial, Trellis one for all.
const (
	GRPC        = "grpc"
	HTTPConnect = "http-connect"
)

// columns are what there is to measure: two tunnels, and what needs none.
var columns = []string{"ours", "reference", "direct", "two relays", "two relays, TLS"}

// dialFunc connects to an address at the far end. ctx is for the dial alone.
type dialFunc func(ctx context.Context, address string) (net.Conn, error)

// subject is something to measure; protocol is "" where there is no tunnel.
type subject struct {
	name, protocol string
	start          func(ctx context.Context, t *tunnel) error
}

// subjects are what is measured in a round, in this order.
func (b *environment) subjects(floors bool) (all []subject) {
	for i := 0; floors && i < len(b.targetAddresses); i++ {
		all = append(all, subject{columns[2+i], "", func(ctx context.Context, t *tunnel) error {
			t.target, t.dial = b.targetAddresses[i], dialDirect(i > 0)
			return nil
		}})
	}
	commands := [][2][]string{{b.Server, b.Agent}}
	if b.Reference != "" {
		commands = append(commands, [2][]string{{filepath.Join(b.Reference, "proxy-server")}, {filepath.Join(b.Reference, "proxy-agent")}})
	}
	for _, protocol := range b.Protocols {
		for i, c := range commands {
			all = append(all, subject{columns[i], protocol, func(ctx context.Context, t *tunnel) error { return t.start(ctx, protocol, c, i > 0) }})
		}
	}
	return all
}

// tunnel leads to the destination.
type tunnel struct {
	*environment
	processes []*process // server and agent; none where there is no tunnel
	dial      dialFunc
	target    string // what to dial
	failed    error  // of a dial
}

// start starts a server and an agent, and waits until they say that they are ready. They end with ctx.
func (t *tunnel) start(ctx context.Context, protocol string, commands [2][]string, theirs bool) (err error) {
	agents, health := freePort(), []string{freePort(), freePort()}
	socket := filepath.Join(t.dir, agents)
	flags := [][]string{
		{"--mode=" + protocol, "--uds-name=" + socket, "--server-port=0", "--cluster-cert=" + t.cert, "--cluster-key=" + t.cert,
			"--cluster-ca-cert=" + t.cert, "--agent-bind-address=127.0.0.1", "--agent-port=" + agents, "--admin-port=" + freePort(),
			"--health-bind-address=127.0.0.1", "--health-port=" + health[0]},
		{"--proxy-server-host=" + hostName, "--proxy-server-port=" + agents, "--ca-cert=" + t.cert, "--agent-cert=" + t.cert,
			"--agent-key=" + t.cert, "--admin-server-port=" + freePort(), "--health-server-host=127.0.0.1", "--health-server-port=" + health[1]}}
	for i, command := range commands {
		p, err := start(ctx, t.dir, append(slices.Clone(command), flags[i]...))
		if err != nil {
			return err
		}
		t.processes = append(t.processes, p)
	}
	for i, p := range t.processes {
		if err := p.ready(ctx, health[i]); err != nil {
			return err
		}
	}
	t.target = t.targetAddresses[0]
	t.dial, err = newFrontend(ctx, protocol, socket, theirs)
	return err
}

// newFrontend returns the dial of a protocol to the tunnel server at a Unix socket: by the client of an API server, which for GRPC is
// another here than there. It ends with the tunnel server, or with ctx.
func newFrontend(ctx context.Context, protocol, socket string, theirs bool) (dialFunc, error) {
	unix := func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", socket) }
	switch {
	case protocol == GRPC && !theirs:
		c := ours.New(unix)
		context.AfterFunc(ctx, c.Close)
		return func(dialing context.Context, address string) (net.Conn, error) {
			return c.DialContext(dialing, "tcp", address)
		}, nil
	case protocol == GRPC:
		options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return unix(ctx) })}
		return func(dialing context.Context, address string) (net.Conn, error) {
			t, err := client.CreateSingleUseGrpcTunnelWithContext(dialing, ctx, "passthrough:///tunnel", options...)
			if err != nil {
				return nil, err
			}
			return t.DialContext(dialing, "tcp", address)
		}, nil
	case protocol == HTTPConnect:
		return func(dialing context.Context, address string) (net.Conn, error) {
			c, err := unix(dialing)
			if err != nil {
				return nil, err
			}
			return proxydial.Connect(dialing, c, socket, address, nil)
		}, nil
	}
	return nil, fmt.Errorf("protocol %q is neither %s nor %s", protocol, GRPC, HTTPConnect)
}

// dialDirect dials without a tunnel; where there are relays, the last of them says that it is connected.
func dialDirect(relays bool) dialFunc {
	return func(ctx context.Context, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil && relays {
			if _, err = io.ReadFull(c, make([]byte, 1)); err != nil {
				_ = c.Close()
			}
		}
		return c, err
	}
}
