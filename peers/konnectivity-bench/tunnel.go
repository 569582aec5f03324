package main

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

// The protocols between the API server and the tunnel server. With grpcMode, kube-apiserver opens a connection to
// the tunnel server for each dial, and Trellis uses one connection for all dials. Each subject is measured with
// the client of its API server.
const (
	grpcMode    = "grpc"
	connectMode = "http-connect"
)

// columns lists the names of the subjects: two tunnels and the baselines.
var columns = []string{"ours", "reference", "direct", "two relays", "two relays, TLS"}

// dialFunc connects to an address behind the tunnel. ctx applies only to the dial.
type dialFunc func(ctx context.Context, address string) (net.Conn, error)

// subject is a tunnel or a baseline to measure. protocol is "" for a baseline.
type subject struct {
	name, protocol string
	start          func(ctx context.Context, t *tunnel) error
}

// subjects returns the subjects of a round in the order of measurement.
func (env *environment) subjects(withBaselines bool) (all []subject) {
	for i := 0; withBaselines && i < len(env.targetAddresses); i++ {
		all = append(all, subject{columns[2+i], "", func(ctx context.Context, t *tunnel) error {
			t.target, t.dial = env.targetAddresses[i], dialDirect(i > 0)
			return nil
		}})
	}
	commands := [][2][]string{{env.Server, env.Agent}}
	if env.Reference != "" {
		commands = append(commands, [2][]string{
			{filepath.Join(env.Reference, "proxy-server")},
			{filepath.Join(env.Reference, "proxy-agent")},
		})
	}
	for _, protocol := range env.Protocols {
		for i, c := range commands {
			all = append(all, subject{columns[i], protocol, func(ctx context.Context, t *tunnel) error {
				return t.start(ctx, protocol, c, i > 0)
			}})
		}
	}
	return all
}

// tunnel is a running subject.
type tunnel struct {
	*environment
	processes []*process // server and agent; empty for a baseline
	dial      dialFunc
	target    string // address to dial
	failed    error  // the first failed dial
}

// start starts a server and an agent, and waits until both are ready. They end when ctx is done.
func (t *tunnel) start(ctx context.Context, protocol string, commands [2][]string, reference bool) (err error) {
	agents, health := freePort(), []string{freePort(), freePort()}
	socket := filepath.Join(t.dir, agents)
	flags := [][]string{
		{
			"--mode=" + protocol, "--uds-name=" + socket, "--server-port=0",
			"--cluster-cert=" + t.cert, "--cluster-key=" + t.cert, "--cluster-ca-cert=" + t.cert,
			"--agent-bind-address=127.0.0.1", "--agent-port=" + agents, "--admin-port=" + freePort(),
			"--health-bind-address=127.0.0.1", "--health-port=" + health[0],
		},
		{
			"--proxy-server-host=" + hostName, "--proxy-server-port=" + agents, "--ca-cert=" + t.cert,
			"--agent-cert=" + t.cert, "--agent-key=" + t.cert, "--admin-server-port=" + freePort(),
			"--health-server-host=127.0.0.1", "--health-server-port=" + health[1],
		},
	}

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
	t.dial, err = newFrontend(ctx, protocol, socket, reference)
	return err
}

// newFrontend returns a function that dials through the tunnel server at a Unix socket. For GRPC, it uses the
// reference client if reference is true, and the Trellis client otherwise. The client is closed when ctx is done.
func newFrontend(ctx context.Context, protocol, socket string, reference bool) (dialFunc, error) {
	unix := func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", socket) }
	switch {
	case protocol == grpcMode && !reference:
		c := ours.New(unix)
		context.AfterFunc(ctx, c.Close)
		return func(dialCtx context.Context, address string) (net.Conn, error) {
			return c.DialContext(dialCtx, "tcp", address)
		}, nil
	case protocol == grpcMode:
		options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return unix(ctx) })}
		return func(dialCtx context.Context, address string) (net.Conn, error) {
			t, err := client.CreateSingleUseGrpcTunnelWithContext(dialCtx, ctx, "passthrough:///tunnel", options...)
			if err != nil {
				return nil, err
			}
			return t.DialContext(dialCtx, "tcp", address)
		}, nil
	case protocol == connectMode:
		return func(dialCtx context.Context, address string) (net.Conn, error) {
			c, err := unix(dialCtx)
			if err != nil {
				return nil, err
			}
			return proxydial.Connect(dialCtx, c, socket, address, nil)
		}, nil
	}
	return nil, fmt.Errorf("protocol %q is neither %s nor %s", protocol, grpcMode, connectMode)
}

// dialDirect returns a function that dials without a tunnel. With relays, it waits until the last relay has
// connected.
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
