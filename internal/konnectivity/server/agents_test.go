package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// testAgent returns an agent with open connections that was admitted long ago.
func testAgent(t *testing.T, id string, open int, identifiers string) *agent {
	t.Helper()
	parsed, err := parseIdentifiers(identifiers)
	if err != nil {
		t.Fatal(err)
	}
	return &agent{id: id, identifiers: parsed, connCount: func() int { return open }}
}

// len returns the number of connected agents.
func (r *agents) len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.all)
}

// sendDrain handles a DRAIN packet of the agent.
func (a *agent) sendDrain() { a.Packets.Data(nil, wire.Packet{Type: wire.Drain}.Message(), false) }

func newRegistry(t *testing.T, strategies string, all ...*agent) *agents {
	t.Helper()
	list, err := ParseStrategies(strategies)
	if err != nil {
		t.Fatal(err)
	}
	a := New(Options{Strategies: list}).agents
	for _, one := range all {
		a.add(one)
	}
	return a
}

// checkPicked fails the test unless the registry picks this agent for an address.
func (a *agent) checkPicked(t *testing.T, among *agents, address string) {
	t.Helper()
	if got, err := among.pick(address); err != nil || got != a {
		t.Errorf("%s: picked %+v, error %v, want %s", address, got, err, a.id)
	}
}

// TestFewestConnectionsFirst checks that the agent with the fewest connections is picked. If several agents have
// the fewest, they share the load (KON-055).
func TestFewestConnectionsFirst(t *testing.T) {
	busy, idle, alike := testAgent(t, "busy", 3, ""), testAgent(t, "idle", 1, ""), testAgent(t, "alike", 1, "")
	a := newRegistry(t, "default", busy, idle, alike)
	picked := map[string]int{}
	for range 300 {
		agent, err := a.pick("10.0.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		picked[agent.id]++
	}
	if picked["busy"] != 0 || picked["idle"] < 50 || picked["alike"] < 50 {
		t.Errorf("picked %v, want about half each of idle and alike", picked)
	}
	idle.connCount, alike.connCount = func() int { return 9 }, func() int { return 9 }
	busy.checkPicked(t, a, "10.0.0.1:80")
}

// TestNoAgent checks that the error of a dial when no agent is connected equals that of the reference server
// (KON-054).
func TestNoAgent(t *testing.T) {
	a := newRegistry(t, "destHost,default")
	if _, err := a.pick("10.0.0.1:80"); !errors.Is(err, errNoAgent) || err.Error() != "No agent available" {
		t.Errorf("no agent: got error %v", err)
	}
	one := testAgent(t, "one", 0, "")
	a.add(one)
	one.checkPicked(t, a, "10.0.0.1:80")
	a.remove(testAgent(t, "one", 0, "")) // another connection, which was never added
	if a.len() != 1 {
		t.Error("removing an unknown connection has removed another one")
	}
	a.remove(one)
	if _, err := a.pick("10.0.0.1:80"); !errors.Is(err, errNoAgent) || a.len() != 0 {
		t.Errorf("after the last agent: got error %v, %d agents left", err, a.len())
	}
	if _, err := newRegistry(t, "destHost", testAgent(t, "x", 0, "")).pick("10.0.0.1:80"); !errors.Is(err, errNoAgent) {
		t.Errorf("only destHost, without an agent for the host: got error %v", err)
	}
}

// TestStrategies checks that the strategies of --proxy-strategies are tried in order (KON-034).
func TestStrategies(t *testing.T) {
	const onNode = "ipv4=10.0.0.1&ipv6=2001:db8:0::1&host=Node-1.example"
	node := testAgent(t, "node", 9, onNode)
	gateway := testAgent(t, "gateway", 5, "default-route=true")
	rest := testAgent(t, "rest", 0, "")
	a := newRegistry(t, "destHost,defaultRoute,default", node, gateway, rest)
	for _, address := range []string{"10.0.0.1:80", "10.0.0.1", "[2001:db8:0:0::1]:80", "NODE-1.example.:443"} {
		node.checkPicked(t, a, address)
	}
	gateway.checkPicked(t, a, "10.0.0.2:80")
	a.remove(gateway)
	rest.checkPicked(t, a, "10.0.0.2:80")
	rest.checkPicked(t, newRegistry(t, "default,destHost", node, rest), "10.0.0.1:80")

	near := testAgent(t, "near", 2, onNode)
	a.add(near)
	near.checkPicked(t, a, "10.0.0.1:80") // of two agents for the host, the one with fewer connections
	node.recordDial(errors.New("refused"))
	near.checkPicked(t, a, "10.0.0.1:80")
	a.remove(near)
	node.checkPicked(t, a, "10.0.0.1:80") // the other strategies are not used
	a.remove(node)
	rest.checkPicked(t, a, "10.0.0.1:80")
}

// TestFailingAgentPassedOver checks that an agent whose last dial failed is picked only if there is no other,
// although it has the fewest connections. It is still preferred to a draining agent (KON-055).
func TestFailingAgentPassedOver(t *testing.T) {
	failing, busy := testAgent(t, "failing", 0, ""), testAgent(t, "busy", 9, "")
	draining := testAgent(t, "draining", 0, "")
	failing.recordDial(errors.New("refused"))
	draining.sendDrain()
	a := newRegistry(t, "default", failing, busy, draining)
	busy.checkPicked(t, a, "192.0.2.1:80")
	a.remove(busy)
	failing.checkPicked(t, a, "192.0.2.1:80")
	a.remove(failing)
	draining.checkPicked(t, a, "192.0.2.1:80")
}

// TestDrainingLast checks that a draining agent is picked only if there is no other (KON-055).
func TestDrainingLast(t *testing.T) {
	node := testAgent(t, "node", 0, "ipv4=10.0.0.1")
	other := testAgent(t, "other", 9, "")
	node.sendDrain()
	a := newRegistry(t, "destHost,default", node, other)
	other.checkPicked(t, a, "10.0.0.1:80")
	a.remove(other)
	node.checkPicked(t, a, "10.0.0.1:80")
}

// TestConnectionsOfOneAgent checks that several connections of one agent count as one, and that the first is
// used. Reference agents close the others (KON-055).
func TestConnectionsOfOneAgent(t *testing.T) {
	first, second := testAgent(t, "a", 5, ""), testAgent(t, "a", 0, "")
	a := newRegistry(t, "default", first, second)
	if a.len() != 1 {
		t.Errorf("%d agents, want 1", a.len())
	}
	first.checkPicked(t, a, "10.0.0.1:80")
	first.sendDrain()
	second.checkPicked(t, a, "10.0.0.1:80")
	a.remove(first)
	second.checkPicked(t, a, "10.0.0.1:80")
}

// TestNewestConnectionOfOneAgent checks that the newest connection is used if the agent supports CONNECT streams.
// Such an agent keeps one session to each server, so an older connection is dead. A connection that was admitted
// just now is not used yet: the agent closes it if it already has a session to this server (KON-053, KON-055).
func TestNewestConnectionOfOneAgent(t *testing.T) {
	dead, current := testAgent(t, "a", 0, ""), testAgent(t, "a", 5, "")
	dead.byConnect, current.byConnect = true, true
	a := newRegistry(t, "default", dead, current)
	current.checkPicked(t, a, "10.0.0.1:80")
	fresh := testAgent(t, "a", 0, "")
	fresh.byConnect, fresh.admittedAt = true, time.Now().Add(time.Hour)
	a.add(fresh)
	current.checkPicked(t, a, "10.0.0.1:80")
	a.remove(current)
	a.remove(dead)
	fresh.checkPicked(t, a, "10.0.0.1:80")
}

// TestAdmissionTime checks that the age of a connection is measured from its admission, and not from the start
// of the token review (KON-055).
func TestAdmissionTime(t *testing.T) {
	var reviewed time.Time
	s, address := startServer(t, func(context.Context, string) error {
		reviewed = time.Now()
		return nil
	}, slog.DiscardHandler)
	if err := connectAgent(t, address, "a", "Bearer a.b.c").waitResponse(t); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the agent is connected", func() bool { return s.agents.len() == 1 })
	a, err := s.agents.pick("10.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	if a.admittedAt.Before(reviewed) {
		t.Errorf("admittedAt is %v before the token review", reviewed.Sub(a.admittedAt))
	}
}

// TestAgentMetrics checks the metrics of the number of agents (KON-052).
func TestAgentMetrics(t *testing.T) {
	const two = "host=a.example&host=b.example"
	a := newRegistry(t, "destHost,default", testAgent(t, "1", 0, two), testAgent(t, "2", 0, two),
		testAgent(t, "3", 0, ""))
	const want = `
# HELP konnectivity_network_proxy_server_ready_backend_connections Number of agents that are connected.
# TYPE konnectivity_network_proxy_server_ready_backend_connections gauge
konnectivity_network_proxy_server_ready_backend_connections 3
# HELP konnectivity_network_proxy_server_ready_backends Number of agents that a strategy can select. For destHost, number of hosts that agents serve.
# TYPE konnectivity_network_proxy_server_ready_backends gauge
konnectivity_network_proxy_server_ready_backends{proxy_strategy="default"} 3
konnectivity_network_proxy_server_ready_backends{proxy_strategy="destHost"} 2
`
	if err := testutil.GatherAndCompare(a.metrics.registry, strings.NewReader(want),
		"konnectivity_network_proxy_server_ready_backend_connections",
		"konnectivity_network_proxy_server_ready_backends"); err != nil {
		t.Error(err)
	}
}

// TestEstablishedConnections checks that a connection counts as established from the agent's successful
// response until its end (KON-026).
func TestEstablishedConnections(t *testing.T) {
	s, address := startServer(t, nil, slog.DiscardHandler)
	requests := make(chan *h2.Stream, 1)
	connectAgentFrom(t, "127.0.0.1", address, h2.Options{EnableTunnel: true,
		Accept: func(stream *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
			requests <- stream
			return h2.DiscardReceiver{}
		}}, wire.AgentID, "a", wire.Tunnel, wire.TunnelByConnect)
	waitFor(t, "the agent is connected", s.Ready)
	dial := func() chan net.Conn {
		opened := make(chan net.Conn, 1)
		s.dial("10.0.0.1:80", func(other tunnel.UnpairedEndpoint, err error) {
			if err != nil {
				close(opened)
				return
			}
			opened <- tunnel.NewConn(other, "10.0.0.1:80")
		})
		return opened
	}
	waitEstablished := func(want int) {
		t.Helper()
		waitFor(t, fmt.Sprint(want, " connections are established"),
			func() bool { return s.agents.established() == want })
	}
	refused, opened := dial(), dial()
	first, second := <-requests, <-requests
	if n := s.agents.established(); n != 0 {
		t.Errorf("%d connections are established before the agent responds, want 0", n)
	}
	first.Header([]hpack.HeaderField{{Name: ":status", Value: "502"}}, true)
	if c := <-refused; c != nil {
		t.Error("a failed dial returned a connection")
	}
	waitEstablished(0)
	second.Header([]hpack.HeaderField{{Name: ":status", Value: "200"}}, false)
	c := <-opened
	waitEstablished(1)
	_ = c.Close()
	second.Close(nil)
	waitEstablished(0)
}

// TestAgentWithoutStreams checks that an agent receives GOAWAY if no more streams can be opened on its connection.
// The agent then reconnects, while open streams continue. The cause may be that the stream IDs are used up, or
// that the agent has sent GOAWAY (KON-053).
func TestAgentWithoutStreams(t *testing.T) {
	s, address := startServer(t, nil, slog.DiscardHandler)
	accept := func(stream *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
		stream.Header([]hpack.HeaderField{{Name: ":status", Value: "200"}}, false)
		return h2.DiscardReceiver{}
	}
	agent := connectAgentFrom(t, "127.0.0.1", address, h2.Options{EnableTunnel: true, Accept: accept}, wire.AgentID,
		"a", wire.Tunnel, wire.TunnelByConnect)
	waitFor(t, "the agent is connected", s.Ready)
	dial := func() error {
		answered := make(chan error, 1)
		s.dial("10.0.0.1:80", func(_ tunnel.UnpairedEndpoint, err error) { answered <- err })
		return <-answered
	}
	if err := dial(); err != nil {
		t.Fatal(err)
	}
	agent.conn.GoAway()
	waitFor(t, "no more streams can be opened", func() bool { return errors.Is(dial(), h2.ErrGoingAway) })
	select {
	case <-agent.conn.GoingAway():
	case <-time.After(testTimeout):
		t.Error("the agent has not received GOAWAY")
	}
	if n, err := agent.conn.StreamCount(), agent.conn.Err(); n != 2 || err != nil {
		t.Errorf("%d streams are open, connection error %v; want 2 and none", n, err)
	}
}

// TestParseStrategies checks valid and invalid values of --proxy-strategies (KON-034).
func TestParseStrategies(t *testing.T) {
	if got, err := ParseStrategies("destHost,, default"); err != nil || len(got) != 2 || got[0] != DestHost ||
		got[1] != Default {
		t.Errorf("got %v, %v", got, err)
	}
	for list, want := range map[string]string{"": "no proxy strategy", ",": "no proxy strategy",
		"default,nearest": `unknown proxy strategy "nearest"`} {
		if _, err := ParseStrategies(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want %s", list, err, want)
		}
	}
}

// TestParseIdentifiers checks the identifiers that reference agents send (KON-050).
func TestParseIdentifiers(t *testing.T) {
	i, err := parseIdentifiers("host=localhost&host=node1.example&cidr=10.0.0.0/8&ipv4=1.2.3.4&" +
		"ipv4=5.6.7.8&ipv6=100%3A%3A&default-route=true&default-route=false&later=x")
	if err != nil || len(i.hosts) != 5 || !i.hosts["node1.example"] || !i.hosts["5.6.7.8"] || !i.hosts["100::"] ||
		!i.defaultRoute {
		t.Errorf("got %+v, %v", i, err)
	}
	for _, query := range []string{"", "default-route=maybe", "default-route=false"} {
		if i, err := parseIdentifiers(query); err != nil || i.defaultRoute {
			t.Errorf("%q: got %+v, error %v", query, i, err)
		}
	}
	for _, query := range []string{";", "host=%zz"} {
		if _, err := parseIdentifiers(query); err == nil || !strings.Contains(err.Error(), "agentIdentifiers") {
			t.Errorf("%q: got error %v", query, err)
		}
	}
}
