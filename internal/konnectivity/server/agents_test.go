package server

import (
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// fakeAgent is a connection that does nothing.
type fakeAgent struct {
	id       string
	of       Identifiers
	open     int
	draining bool
	failing  bool
}

func (f *fakeAgent) ID() string               { return f.id }
func (f *fakeAgent) Identifiers() Identifiers { return f.of }
func (f *fakeAgent) Draining() bool           { return f.draining }
func (f *fakeAgent) Failing() bool            { return f.failing }
func (f *fakeAgent) Open() int                { return f.open }

func registry(t *testing.T, strategies string, agents ...*fakeAgent) *Agents[*fakeAgent] {
	t.Helper()
	list, err := ParseStrategies(strategies)
	if err != nil {
		t.Fatal(err)
	}
	a := NewAgents[*fakeAgent](list, NewMetrics())
	for _, one := range agents {
		a.Add(one)
	}
	return a
}

// pickedFor fails unless the agent is chosen for an address.
func (f *fakeAgent) pickedFor(t *testing.T, a *Agents[*fakeAgent], address string) {
	t.Helper()
	got, err := a.Pick(address)
	if err != nil || got != f {
		t.Errorf("%s: got %+v, %v, want %+v", address, got, err, f)
	}
}

// KON-055: several agents share the load: who has the fewest connections gets the next, and equals all get their part.
func TestFewestConnectionsFirst(t *testing.T) {
	busy, idle, alike := &fakeAgent{id: "busy", open: 3}, &fakeAgent{id: "idle", open: 1}, &fakeAgent{id: "alike", open: 1}
	a := registry(t, "default", busy, idle, alike)
	picked := map[string]int{}
	for range 300 {
		agent, err := a.Pick("10.0.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		picked[agent.id]++
	}
	if picked["busy"] != 0 || picked["idle"] < 50 || picked["alike"] < 50 {
		t.Errorf("picked %v, want about half each of idle and alike", picked)
	}
	idle.open, alike.open = 9, 9
	busy.pickedFor(t, a, "10.0.0.1:80")
}

// KON-054: without an agent the error is the reference's.
func TestNoAgent(t *testing.T) {
	a := registry(t, "destHost,default")
	if _, err := a.Pick("10.0.0.1:80"); !errors.Is(err, ErrNoAgent) || err.Error() != "No agent available" {
		t.Errorf("no agent at all: %v", err)
	}
	one := &fakeAgent{id: "one"}
	a.Add(one)
	one.pickedFor(t, a, "10.0.0.1:80")
	a.Remove(&fakeAgent{id: "one"}) // another connection, which was never added
	if a.Len() != 1 {
		t.Error("removed what was not there, and with it what was")
	}
	a.Remove(one)
	if _, err := a.Pick("10.0.0.1:80"); !errors.Is(err, ErrNoAgent) || a.Len() != 0 {
		t.Errorf("the last agent has gone: %v, and %d are left", err, a.Len())
	}
	if _, err := registry(t, "destHost", &fakeAgent{id: "x"}).Pick("10.0.0.1:80"); !errors.Is(err, ErrNoAgent) {
		t.Errorf("destHost alone, and none is for it: %v", err)
	}
}

// KON-034: --proxy-strategies are tried in their order.
func TestStrategies(t *testing.T) {
	node := &fakeAgent{id: "node", of: Identifiers{IPv4: []string{"10.0.0.1"}, IPv6: []string{"2001:db8:0::1"}, Host: []string{"Node-1.example"}}, open: 9}
	gate := &fakeAgent{id: "gate", of: Identifiers{DefaultRoute: true}, open: 5}
	rest := &fakeAgent{id: "rest"}
	a := registry(t, "destHost,defaultRoute,default", node, gate, rest)
	for _, address := range []string{"10.0.0.1:80", "10.0.0.1", "[2001:db8:0:0::1]:80", "NODE-1.example.:443"} {
		node.pickedFor(t, a, address)
	}
	gate.pickedFor(t, a, "10.0.0.2:80")
	a.Remove(gate)
	rest.pickedFor(t, a, "10.0.0.2:80")
	rest.pickedFor(t, registry(t, "default,destHost", node, rest), "10.0.0.1:80")

	near := &fakeAgent{id: "near", of: node.of, open: 2}
	a.Add(near)
	near.pickedFor(t, a, "10.0.0.1:80") // two are for it: the one with the fewest
	a.Remove(near)
	a.Remove(node)
	rest.pickedFor(t, a, "10.0.0.1:80")
}

// KON-055: an agent whose dials fail, and which so has the fewest connections, is passed over as long as there is another; and it is
// better than one that goes away.
func TestFailingPassedOver(t *testing.T) {
	failing, busy, draining := &fakeAgent{id: "failing", failing: true}, &fakeAgent{id: "busy", open: 9}, &fakeAgent{id: "draining", draining: true}
	a := registry(t, "default", failing, busy, draining)
	busy.pickedFor(t, a, "192.0.2.1:80")
	a.Remove(busy)
	failing.pickedFor(t, a, "192.0.2.1:80")
	a.Remove(failing)
	draining.pickedFor(t, a, "192.0.2.1:80")
}

// KON-055: an agent that goes away gets nothing new as long as there is another.
func TestDrainingLast(t *testing.T) {
	node := &fakeAgent{id: "node", of: Identifiers{IPv4: []string{"10.0.0.1"}}, draining: true}
	other := &fakeAgent{id: "other", open: 9}
	a := registry(t, "destHost,default", node, other)
	other.pickedFor(t, a, "10.0.0.1:80")
	a.Remove(other)
	node.pickedFor(t, a, "10.0.0.1:80")
}

// KON-055: of several connections of one agent the first is used, as reference agents close the others, and it counts as one.
func TestConnectionsOfOneAgent(t *testing.T) {
	first, second := &fakeAgent{id: "a", open: 5}, &fakeAgent{id: "a"}
	a := registry(t, "default", first, second)
	if a.Len() != 1 {
		t.Errorf("%d agents, want 1", a.Len())
	}
	first.pickedFor(t, a, "10.0.0.1:80")
	first.draining = true
	second.pickedFor(t, a, "10.0.0.1:80")
	a.Remove(first)
	second.pickedFor(t, a, "10.0.0.1:80")
}

// KON-052: the metrics say how many agents there are.
func TestAgentsAreCounted(t *testing.T) {
	two := Identifiers{Host: []string{"a.example", "b.example"}}
	a := registry(t, "destHost,default", &fakeAgent{id: "1", of: two}, &fakeAgent{id: "2", of: two}, &fakeAgent{id: "3"})
	const want = `
# HELP konnectivity_network_proxy_server_ready_backend_connections Number of agents that are connected.
# TYPE konnectivity_network_proxy_server_ready_backend_connections gauge
konnectivity_network_proxy_server_ready_backend_connections 3
# HELP konnectivity_network_proxy_server_ready_backends Number of agents that a strategy chooses from, or with destHost of their hosts.
# TYPE konnectivity_network_proxy_server_ready_backends gauge
konnectivity_network_proxy_server_ready_backends{proxy_strategy="default"} 3
konnectivity_network_proxy_server_ready_backends{proxy_strategy="destHost"} 2
`
	if err := testutil.GatherAndCompare(a.metrics.registry, strings.NewReader(want),
		"konnectivity_network_proxy_server_ready_backend_connections", "konnectivity_network_proxy_server_ready_backends"); err != nil {
		t.Error(err)
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
	i, err := ParseIdentifiers("host=localhost&host=node1.example&cidr=10.0.0.0/8&ipv4=1.2.3.4&ipv4=5.6.7.8&ipv6=100%3A%3A&default-route=true&default-route=false&later=x")
	if err != nil || len(i.Host) != 2 || len(i.CIDR) != 1 || len(i.IPv4) != 2 || i.IPv6[0] != "100::" || !i.DefaultRoute {
		t.Errorf("got %+v, %v", i, err)
	}
	for _, query := range []string{"", "default-route=maybe", "default-route=false"} {
		if i, err := ParseIdentifiers(query); err != nil || i.DefaultRoute {
			t.Errorf("%q: %+v, %v", query, i, err)
		}
	}
	for _, query := range []string{";", "host=%zz"} {
		if _, err := ParseIdentifiers(query); err == nil || !strings.Contains(err.Error(), "agentIdentifiers") {
			t.Errorf("%q: %v", query, err)
		}
	}
}
