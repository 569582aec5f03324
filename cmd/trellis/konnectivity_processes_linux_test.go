package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/client"
	"github.com/trellis-k8s/trellis/testserver"
)

// pairs lists the tested combinations of a server and an agent. At least one of the two is that of Trellis.
var pairs = []struct{ server, agent implementation }{{trellis, trellis}, {trellis, reference}, {reference, trellis}}

var overSocket = transport{"GRPC", true}

// echo is a destination that sends back all data.
type echo struct {
	address string
	open    atomic.Int64 // number of open connections
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return echoOn(l)
}

func echoOn(l net.Listener) *echo {
	e := &echo{address: l.Addr().String()}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			e.open.Add(1)
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
				e.open.Add(-1)
			}()
		}
	}()
	return e
}

// newClient returns a client of the tunnel server. API servers have the same client.
func (s *tunnelServer) newClient(t *testing.T) *client.Client {
	c := client.New(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.frontend)
	})
	t.Cleanup(c.Close)
	return c
}

// connect opens a connection to the destination, and checks that data is sent back.
func (e *echo) connect(ctx context.Context, dialer *client.Client) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnelTimeout)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "tcp", e.address)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(tunnelTimeout))
	if _, err = conn.Write([]byte("echo")); err == nil {
		_, err = io.ReadFull(conn, make([]byte, 4))
	}
	if err != nil {
		_ = conn.Close()
	}
	return conn, err
}

// connections opens n connections until the end of the test.
func (e *echo) connections(t *testing.T, dialer *client.Client, n int) (all []net.Conn) {
	t.Helper()
	for range n {
		conn, err := e.connect(t.Context(), dialer)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		all = append(all, conn)
	}
	return all
}

// TestSeveralServersAndAgents checks that each of two agents connects to each of two servers. Each server distributes
// its connections between both agents. The agents connect through a load balancer, and get the number of servers from
// --server-count or from Leases. Agents of Trellis can also connect to the addresses in the Leases. KON-055
func TestSeveralServersAndAgents(t *testing.T) {
	if os.Getenv(ownNetwork) == "" {
		inOwnNetwork(t)
		return
	}
	setUpNetwork(t)
	for _, p := range pairs {
		for _, method := range []string{"server count", "Leases", "addresses in Leases"} {
			if method == "addresses in Leases" && (p.server == reference || p.agent == reference) {
				continue // the reference programs do not support addresses in Leases
			}
			t.Run(fmt.Sprintf("%s servers, %s agents, %s", p.server, p.agent, method),
				func(t *testing.T) { testSeveral(t, p.server, p.agent, method) })
		}
	}
}

// testSeveral starts two servers and two agents, which find the servers by one of the methods.
func testSeveral(t *testing.T, server, agent implementation, method string) {
	keys, _ := newKeys(t)
	var serverFlags, agentFlags []string
	if method == "server count" {
		serverFlags = []string{"--server-count=2"}
	} else {
		kubeconfig := "--kubeconfig=" + testserver.Start(t).Kubeconfig
		serverFlags = []string{"--enable-lease-controller", kubeconfig}
		agentFlags = []string{"--count-server-leases", kubeconfig}
	}
	var servers []*tunnelServer
	var agents []*tunnelAgent
	for i := range 2 {
		more := append(serverFlags[:len(serverFlags):len(serverFlags)], fmt.Sprintf("--server-id=s%d", i))
		if method == "addresses in Leases" {
			more = append(more, "--advertise-agent-address=127.0.0.1") // with the server's own port
		}
		servers = append(servers, newTunnelServer(t, server, keys, overSocket, filepath.Join(shortFolder(t), "s"),
			more...))
	}
	at := servers[0].agentPort
	if method != "addresses in Leases" {
		at = balance(t, servers)
	}
	for range 2 {
		agents = append(agents, newTunnelAgent(t, agent, nil, keys, at, agentFlags...))
	}
	eventually(t, "each agent is connected to each server", func() bool {
		for i := range 2 {
			if metric(servers[i].adminPort, "server_ready_backend_connections") != 2 ||
				metric(agents[i].adminPort, "agent_open_server_connections") != 2 {
				return false
			}
		}
		return true
	})
	const each, least = 40, 5 // a reference proxy-server chooses an agent at random
	e, before := newEcho(t), make([]int, len(agents))
	for i, s := range servers {
		e.connections(t, s.newClient(t), each)
		for j, a := range agents {
			n := metric(a.adminPort, "agent_open_endpoint_connections")
			if n-before[j] < least {
				t.Errorf("agent %d has %d of %d connections through server %d, want at least %d",
					j, n-before[j], each, i, least)
			}
			before[j] = n
		}
	}
}

// balance starts a load balancer that relays each connection to one of the servers.
func balance(t *testing.T, servers []*tunnelServer) (port int) {
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", s.agentPort))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go relay(l, addresses...)
	return l.Addr().(*net.TCPAddr).Port
}

// TestKilledUnderConnections checks that a thousand connections end at both ends if the server or the agent is
// killed. The program that still runs connects to a new server or agent. Then new connections work. KON-053
func TestKilledUnderConnections(t *testing.T) {
	if os.Getenv(ownNetwork) == "" {
		inOwnNetwork(t)
		return
	}
	setUpNetwork(t)
	for _, p := range pairs {
		t.Run(fmt.Sprintf("%s server, %s agent", p.server, p.agent),
			func(t *testing.T) { testKilled(t, p.server, p.agent) })
	}
}

func testKilled(t *testing.T, server, agent implementation) {
	keys, _ := newKeys(t)
	e := newEcho(t)
	s := newTunnelServer(t, server, keys, overSocket, filepath.Join(shortFolder(t), "s"))
	a := newTunnelAgent(t, agent, nil, keys, s.agentPort)
	dialer := s.newClient(t)
	for _, end := range []string{"server", "agent"} {
		eventually(t, "the server is ready", s.ready)
		conns := e.connections(t, dialer, 1000)
		if end == "server" {
			s.kill()
		} else {
			a.kill()
		}
		for i, c := range conns {
			_ = c.SetReadDeadline(time.Now().Add(tunnelTimeout))
			if n, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
				t.Fatalf("after the kill of the %s, read of connection %d: got %d bytes, %v", end, i, n, err)
			}
		}
		eventually(t, "connections end at the destination after the kill of the "+end,
			func() bool { return e.open.Load() == 0 })
		if end == "server" {
			s.process = launch(t, nil, s.args)
		} else {
			eventually(t, "the server has no agent", func() bool { return !s.ready() })
			a = newTunnelAgent(t, agent, nil, keys, s.agentPort)
		}
		eventually(t, "the server has an agent again", s.ready)
		for _, c := range e.connections(t, dialer, 10) {
			_ = c.Close()
		}
		eventually(t, "closed connections end at the destination", func() bool { return e.open.Load() == 0 })
	}
}
