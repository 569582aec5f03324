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

// someAgent is one with so many connections, long since.
func someAgent(t *testing.T, id string, open int, identifiers string) *agent {
	t.Helper()
	of, err := parseIdentifiers(identifiers)
	if err != nil {
		t.Fatal(err)
	}
	return &agent{id: id, identifiers: of, connCount: func() int { return open }}
}

// len is how many agents are connected.
func (r *agents) len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.all)
}

// drain has it say that it goes away.
func (a *agent) drain() { a.Packets.Data(nil, wire.Packet{Type: wire.Drain}.Message(), false) }

func registry(t *testing.T, strategies string, all ...*agent) *agents {
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

// pickedFor fails unless the agent is chosen for an address.
func (a *agent) pickedFor(t *testing.T, among *agents, address string) {
	t.Helper()
	if got, err := among.pick(address); err != nil || got != a {
		t.Errorf("%s: got %+v, %v, want %s", address, got, err, a.id)
	}
}

// KON-055: several agents share the load: who has the fewest connections gets the next, and equals all get their part.
func TestFewestConnectionsFirst(t *testing.T) {
	busy, idle, alike := someAgent(t, "busy", 3, ""), someAgent(t, "idle", 1, ""), someAgent(t, "alike", 1, "")
	a := registry(t, "default", busy, idle, alike)
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
	busy.pickedFor(t, a, "10.0.0.1:80")
}

// KON-054: without an agent the error is the reference's.
func TestNoAgent(t *testing.T) {
	a := registry(t, "destHost,default")
	if _, err := a.pick("10.0.0.1:80"); !errors.Is(err, errNoAgent) || err.Error() != "No agent available" {
		t.Errorf("no agent at all: %v", err)
	}
	one := someAgent(t, "one", 0, "")
	a.add(one)
	one.pickedFor(t, a, "10.0.0.1:80")
	a.remove(someAgent(t, "one", 0, "")) // another connection, which was never added
	if a.len() != 1 {
		t.Error("removed what was not there, and with it what was")
	}
	a.remove(one)
	if _, err := a.pick("10.0.0.1:80"); !errors.Is(err, errNoAgent) || a.len() != 0 {
		t.Errorf("the last agent has gone: %v, and %d are left", err, a.len())
	}
	if _, err := registry(t, "destHost", someAgent(t, "x", 0, "")).pick("10.0.0.1:80"); !errors.Is(err, errNoAgent) {
		t.Errorf("destHost alone, and none is for it: %v", err)
	}
}

// KON-034: --proxy-strategies are tried in their order.
func TestStrategies(t *testing.T) {
	const onNode = "ipv4=10.0.0.1&ipv6=2001:db8:0::1&host=Node-1.example"
	node := someAgent(t, "node", 9, onNode)
	gate := someAgent(t, "gate", 5, "default-route=true")
	rest := someAgent(t, "rest", 0, "")
	a := registry(t, "destHost,defaultRoute,default", node, gate, rest)
	for _, address := range []string{"10.0.0.1:80", "10.0.0.1", "[2001:db8:0:0::1]:80", "NODE-1.example.:443"} {
		node.pickedFor(t, a, address)
	}
	gate.pickedFor(t, a, "10.0.0.2:80")
	a.remove(gate)
	rest.pickedFor(t, a, "10.0.0.2:80")
	rest.pickedFor(t, registry(t, "default,destHost", node, rest), "10.0.0.1:80")

	near := someAgent(t, "near", 2, onNode)
	a.add(near)
	near.pickedFor(t, a, "10.0.0.1:80") // two are for it: the one with the fewest
	node.recordDial(errors.New("refused"))
	near.pickedFor(t, a, "10.0.0.1:80")
	a.remove(near)
	node.pickedFor(t, a, "10.0.0.1:80") // the others do not reach it
	a.remove(node)
	rest.pickedFor(t, a, "10.0.0.1:80")
}

// KON-055: an agent whose dials fail, and which so has the fewest connections, is passed over as long as there is another; and it is
// better than one that goes away.
func TestFailingPassedOver(t *testing.T) {
	failing, busy, draining := someAgent(t, "failing", 0, ""), someAgent(t, "busy", 9, ""), someAgent(t, "draining", 0, "")
	failing.recordDial(errors.New("refused"))
	draining.drain()
	a := registry(t, "default", failing, busy, draining)
	busy.pickedFor(t, a, "192.0.2.1:80")
	a.remove(busy)
	failing.pickedFor(t, a, "192.0.2.1:80")
	a.remove(failing)
	draining.pickedFor(t, a, "192.0.2.1:80")
}

// KON-055: an agent that goes away gets nothing new as long as there is another.
func TestDrainingLast(t *testing.T) {
	node := someAgent(t, "node", 0, "ipv4=10.0.0.1")
	other := someAgent(t, "other", 9, "")
	node.drain()
	a := registry(t, "destHost,default", node, other)
	other.pickedFor(t, a, "10.0.0.1:80")
	a.remove(other)
	node.pickedFor(t, a, "10.0.0.1:80")
}

// KON-055: of several connections of one agent the first is used, as reference agents close the others, and it counts as one.
func TestConnectionsOfOneAgent(t *testing.T) {
	first, second := someAgent(t, "a", 5, ""), someAgent(t, "a", 0, "")
	a := registry(t, "default", first, second)
	if a.len() != 1 {
		t.Errorf("%d agents, want 1", a.len())
	}
	first.pickedFor(t, a, "10.0.0.1:80")
	first.drain()
	second.pickedFor(t, a, "10.0.0.1:80")
	a.remove(first)
	second.pickedFor(t, a, "10.0.0.1:80")
}

// KON-053, KON-055: an agent that has a stream for each connection keeps one session to a server, so that the connection that came last
// is the one that lives; but not at once, as it closes one that has led it to a server that it has met already.
func TestLastConnectionOfOneAgent(t *testing.T) {
	dead, now := someAgent(t, "a", 0, ""), someAgent(t, "a", 5, "")
	dead.byConnect, now.byConnect = true, true
	a := registry(t, "default", dead, now)
	now.pickedFor(t, a, "10.0.0.1:80")
	visit := someAgent(t, "a", 0, "")
	visit.byConnect, visit.admittedAt = true, time.Now().Add(time.Hour)
	a.add(visit)
	now.pickedFor(t, a, "10.0.0.1:80")
	a.remove(now)
	a.remove(dead)
	visit.pickedFor(t, a, "10.0.0.1:80")
}

// KON-055: a connection that the agent may be about to close is known by when it was let in, however long its token was reviewed.
func TestSettlesFromWhenItIsLetIn(t *testing.T) {
	var reviewed time.Time
	s, address := door(t, func(context.Context, string) error {
		reviewed = time.Now()
		return nil
	}, slog.DiscardHandler)
	if err := knockAt(t, address, "a", "Bearer a.b.c").told(t); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent is there", func() bool { return s.agents.len() == 1 })
	a, err := s.agents.pick("10.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	if a.admittedAt.Before(reviewed) {
		t.Errorf("it came %v before its token was reviewed", reviewed.Sub(a.admittedAt))
	}
}

// KON-052: the metrics say how many agents there are.
func TestAgentsAreCounted(t *testing.T) {
	const two = "host=a.example&host=b.example"
	a := registry(t, "destHost,default", someAgent(t, "1", 0, two), someAgent(t, "2", 0, two), someAgent(t, "3", 0, ""))
	const want = `
# HELP konnectivity_network_proxy_server_ready_backend_connections Number of agents that are connected.
# TYPE konnectivity_network_proxy_server_ready_backend_connections gauge
konnectivity_network_proxy_server_ready_backend_connections 3
# HELP konnectivity_network_proxy_server_ready_backends Number of agents that a strategy can select, or number of their hosts for destHost.
# TYPE konnectivity_network_proxy_server_ready_backends gauge
konnectivity_network_proxy_server_ready_backends{proxy_strategy="default"} 3
konnectivity_network_proxy_server_ready_backends{proxy_strategy="destHost"} 2
`
	if err := testutil.GatherAndCompare(a.metrics.registry, strings.NewReader(want),
		"konnectivity_network_proxy_server_ready_backend_connections", "konnectivity_network_proxy_server_ready_backends"); err != nil {
		t.Error(err)
	}
}

// KON-026: a dial counts as an established connection from when the agent has answered that it is one, until it ends.
func TestEstablishedConnections(t *testing.T) {
	s, address := door(t, nil, slog.DiscardHandler)
	asked := make(chan *h2.Stream, 1)
	knockFrom(t, "127.0.0.1", address, h2.Options{EnableTunnel: true, Accept: func(stream *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
		asked <- stream
		return h2.DiscardReceiver{}
	}}, wire.AgentID, "a", wire.Tunnel, wire.TunnelByConnect)
	eventually(t, "the agent is there", s.Ready)
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
	established := func(want int) {
		t.Helper()
		eventually(t, fmt.Sprint(want, " connections are established"), func() bool { return s.agents.established() == want })
	}
	refused, opened := dial(), dial()
	first, second := <-asked, <-asked
	if n := s.agents.established(); n != 0 {
		t.Errorf("%d connections before the agent has answered", n)
	}
	first.Header([]hpack.HeaderField{{Name: ":status", Value: "502"}}, true)
	if c := <-refused; c != nil {
		t.Error("what the agent could not open is open")
	}
	established(0)
	second.Header([]hpack.HeaderField{{Name: ":status", Value: "200"}}, false)
	c := <-opened
	established(1)
	_ = c.Close()
	second.Close(nil)
	established(0)
}

// KON-053: an agent by whose connection no more streams can be opened, as its numbers are used up or it takes no more, is asked to come anew.
// What is open goes on.
func TestAgentWithoutStreams(t *testing.T) {
	s, address := door(t, nil, slog.DiscardHandler)
	accept := func(stream *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
		stream.Header([]hpack.HeaderField{{Name: ":status", Value: "200"}}, false)
		return h2.DiscardReceiver{}
	}
	agent := knockFrom(t, "127.0.0.1", address, h2.Options{EnableTunnel: true, Accept: accept}, wire.AgentID, "a", wire.Tunnel, wire.TunnelByConnect)
	eventually(t, "the agent is there", s.Ready)
	dial := func() error {
		answered := make(chan error, 1)
		s.dial("10.0.0.1:80", func(_ tunnel.UnpairedEndpoint, err error) { answered <- err })
		return <-answered
	}
	if err := dial(); err != nil {
		t.Fatal(err)
	}
	agent.conn.GoAway()
	eventually(t, "no more streams can be opened", func() bool { return errors.Is(dial(), h2.ErrGoingAway) })
	select {
	case <-agent.conn.GoingAway():
	case <-time.After(patience):
		t.Error("the agent is not asked to come anew")
	}
	if n, err := agent.conn.StreamCount(), agent.conn.Err(); n != 2 || err != nil {
		t.Errorf("%d streams are open, and the connection is at %v", n, err)
	}
}

// KON-034: what --proxy-strategies may be.
func TestParseStrategies(t *testing.T) {
	if got, err := ParseStrategies("destHost,, default"); err != nil || len(got) != 2 || got[0] != DestHost || got[1] != Default {
		t.Errorf("got %v, %v", got, err)
	}
	for list, want := range map[string]string{"": "no proxy strategy", ",": "no proxy strategy", "default,nearest": `unknown proxy strategy "nearest"`} {
		if _, err := ParseStrategies(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", list, err, want)
		}
	}
}

// KON-050: the identifiers of reference agents.
func TestParseIdentifiers(t *testing.T) {
	i, err := parseIdentifiers("host=localhost&host=node1.example&cidr=10.0.0.0/8&ipv4=1.2.3.4&ipv4=5.6.7.8&ipv6=100%3A%3A&default-route=true&default-route=false&later=x")
	if err != nil || len(i.hosts) != 5 || !i.hosts["node1.example"] || !i.hosts["5.6.7.8"] || !i.hosts["100::"] || !i.defaultRoute {
		t.Errorf("got %+v, %v", i, err)
	}
	for _, query := range []string{"", "default-route=maybe", "default-route=false"} {
		if i, err := parseIdentifiers(query); err != nil || i.defaultRoute {
			t.Errorf("%q: %+v, %v", query, i, err)
		}
	}
	for _, query := range []string{";", "host=%zz"} {
		if _, err := parseIdentifiers(query); err == nil || !strings.Contains(err.Error(), "agentIdentifiers") {
			t.Errorf("%q: %v", query, err)
		}
	}
}
