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

// pairs are who has made the servers, and who the agents, but for the reference alone.
var pairs = []struct{ server, agent whose }{{ours, ours}, {ours, references}, {references, ours}}

var overSocket = transport{"GRPC", true}

// echo is a destination that sends back what comes.
type echo struct {
	address string
	open    atomic.Int64 // connections
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

// through is what an API server dials by.
func (s *tunnelServer) through(t *testing.T) *client.Client {
	c := client.New(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix",
			s.front)
	})
	t.Cleanup(c.Close)
	return c
}

// connect opens a connection to a destination, and has something go there and back.
func (e *echo) connect(ctx context.Context, by *client.Client) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnelPatience)
	defer cancel()
	conn, err := by.DialContext(ctx, "tcp", e.address)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(tunnelPatience))
	if _, err = conn.Write([]byte("told")); err == nil {
		_, err = io.ReadFull(conn, make([]byte, 4))
	}
	if err != nil {
		_ = conn.Close()
	}
	return conn, err
}

// connections opens so many.
func (e *echo) connections(t *testing.T, by *client.Client, n int) (all []net.Conn) {
	t.Helper()
	for range n {
		conn, err := e.connect(t.Context(), by)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		all = append(all, conn)
	}
	return all
}

// KON-055: two agents are connected to both of two servers, and share what goes through each. They find the servers by
// a load balancer, knowing from --server-count or from Leases how many there are, or, those of ours, by the addresses
// in the Leases.
func TestSeveralServersAndAgents(t *testing.T) {
	if os.Getenv(ownNetwork) == "" {
		inOwnNetwork(t)
		return
	}
	setUpNetwork(t)
	for _, p := range pairs {
		for _, by := range []string{"server count", "Leases", "addresses in Leases"} {
			if by == "addresses in Leases" && (p.server == references || p.agent == references) {
				continue // the reference has none
			}
			t.Run(fmt.Sprintf("%s servers, %s agents, %s", p.server, p.agent, by),
				func(t *testing.T) { several(t, p.server, p.agent, by) })
		}
	}
}

// several starts two servers and two agents, which are to find these by something.
func several(t *testing.T, server, agent whose, by string) {
	keys, _ := newKeys(t)
	var serving, counting []string
	if by == "server count" {
		serving = []string{"--server-count=2"}
	} else {
		kubeconfig := "--kubeconfig=" + testserver.Start(t).Kubeconfig
		serving, counting = []string{"--enable-lease-controller", kubeconfig}, []string{"--count-server-leases",
			kubeconfig}
	}
	var servers []*tunnelServer
	var agents []*tunnelAgent
	for i := range 2 {
		more := append(serving[:len(serving):len(serving)], fmt.Sprintf("--server-id=s%d", i))
		if by == "addresses in Leases" {
			more = append(more, "--advertise-agent-address=127.0.0.1") // with the port of each
		}
		servers = append(servers, newTunnelServer(t, server, keys, overSocket, filepath.Join(shortFolder(t), "s"),
			more...))
	}
	at := servers[0].agents
	if by != "addresses in Leases" {
		at = balance(t, servers)
	}
	for range 2 {
		agents = append(agents, newTunnelAgent(t, agent, nil, keys, at, counting...))
	}
	eventually(t, "each agent is connected to each server", func() bool {
		for i := range 2 {
			if metric(servers[i].admin, "server_ready_backend_connections") != 2 ||
				metric(agents[i].admin, "agent_open_server_connections") != 2 {
				return false
			}
		}
		return true
	})
	const each, least = 40, 5 // the reference's servers choose by chance
	e, before := newEcho(t), make([]int, len(agents))
	for i, s := range servers {
		e.connections(t, s.through(t), each)
		for j, a := range agents {
			n := metric(a.admin, "agent_open_endpoint_connections")
			if n-before[j] < least {
				t.Errorf("of %d connections through server %d, agent %d has %d", each, i, j, n-before[j])
			}
			before[j] = n
		}
	}
}

// balance leads those who connect to a port to one of the servers.
func balance(t *testing.T, servers []*tunnelServer) (port int) {
	var to []string
	for _, s := range servers {
		to = append(to, fmt.Sprintf("127.0.0.1:%d", s.agents))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go relay(l, to...)
	return l.Addr().(*net.TCPAddr).Port
}

// KON-053: a server, or an agent, that is killed takes its thousand connections with it at both ends, and nothing else:
// the other end finds the next one, and new connections go through that.
func TestKilledUnderConnections(t *testing.T) {
	if os.Getenv(ownNetwork) == "" {
		inOwnNetwork(t)
		return
	}
	setUpNetwork(t)
	for _, p := range pairs {
		t.Run(fmt.Sprintf("%s server, %s agent", p.server, p.agent),
			func(t *testing.T) { killed(t, p.server, p.agent) })
	}
}

func killed(t *testing.T, server, agent whose) {
	keys, _ := newKeys(t)
	e := newEcho(t)
	s := newTunnelServer(t, server, keys, overSocket, filepath.Join(shortFolder(t), "s"))
	a := newTunnelAgent(t, agent, nil, keys, s.agents)
	by := s.through(t)
	for _, end := range []string{"server", "agent"} {
		eventually(t, "the server is ready", s.ready)
		conns := e.connections(t, by, 1000)
		if end == "server" {
			s.kill()
		} else {
			a.kill()
		}
		for i, c := range conns {
			_ = c.SetReadDeadline(time.Now().Add(tunnelPatience))
			if n, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
				t.Fatalf("the %s is killed: connection %d ends with %d, %v", end, i, n, err)
			}
		}
		eventually(t, "the "+end+" is killed: connections end at the destination",
			func() bool { return e.open.Load() == 0 })
		if end == "server" {
			s.process = launch(t, nil, s.args)
		} else {
			eventually(t, "the server has no agent", func() bool { return !s.ready() })
			a = newTunnelAgent(t, agent, nil, keys, s.agents)
		}
		eventually(t, "the server has an agent again", s.ready)
		for _, c := range e.connections(t, by, 10) {
			_ = c.Close()
		}
		eventually(t, "connections that are closed end at the destination", func() bool { return e.open.Load() == 0 })
	}
}
