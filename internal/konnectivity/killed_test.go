package konnectivity_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/agent"
	"github.com/trellis-k8s/trellis/internal/konnectivity/client"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// moment is when something is killed: as a script goes on, right after a packet was passed on.
type moment struct {
	script string
	at     *place
	packet wire.Type
	back   bool // the packet comes from the agent's side
}

// place is a link, and the ends that it has.
type place struct {
	name string
	ends [2]string
}

var atFront, atAgent = &place{"front", [2]string{"front", "server"}}, &place{"agent", [2]string{"server", "agent"}}

func (m moment) String() string {
	way := "forth"
	if m.back {
		way = "back"
	}
	return fmt.Sprintf("%s, %v %s at the %s", m.script, m.packet, way, m.at.name)
}

// moments are all packets that there are, in each way that they go.
func moments(mode server.Mode, packets bool) (all []moment) {
	for _, at := range []*place{atFront, atAgent} {
		all = append(all, moment{"given up", at, wire.DialReq, false}, moment{"exchange", at, wire.DialReq, false}, moment{"exchange", at, wire.DialRsp, true}, moment{"exchange", at, wire.Data, false},
			moment{"exchange", at, wire.Data, true}, moment{"exchange", at, wire.CloseReq, false})
	}
	if mode == server.ModeGRPC {
		all = append(all, moment{"exchange", atFront, wire.CloseRsp, true}, moment{"given up", atFront, wire.DialCls, false})
	} else {
		all = append(all, moment{"destination closes", atFront, wire.CloseRsp, true}, moment{"given up", atFront, wire.CloseReq, false})
	}
	if packets { // otherwise, who closes does not wait for an answer
		all = append(all, moment{"exchange", atAgent, wire.CloseRsp, true})
	}
	return append(all, moment{"destination closes", atAgent, wire.CloseRsp, true}, moment{"given up", atAgent, wire.DialCls, false}, moment{"drain", atAgent, wire.Drain, true})
}

// KON-050 KON-053: an end that is killed right after it has sent a packet, or has been sent one, of whatever type, takes nothing with it but its
// connections, in every mode: what is asked ends, what is left goes on with the next one, and nothing of the other stays.
func TestKilledAtEachPacket(t *testing.T) {
	p := newPKI(t)
	for _, mode := range []server.Mode{server.ModeGRPC, server.ModeHTTPConnect} {
		for _, packets := range []bool{false, true} {
			for _, m := range moments(mode, packets) {
				for _, victim := range m.at.ends {
					name := fmt.Sprintf("%s, packets=%v, %v, %s killed", mode, packets, m, victim)
					rest := atRest(t)
					t.Run(name, func(t *testing.T) { newStage(t, p, mode, packets).kills(t, m, victim) })
					rest()
				}
			}
		}
	}
}

// stage is a tunnel of which each end can be killed and set up anew, and the links between them.
type stage struct {
	p            *pki
	mode         server.Mode
	front, agent *link
	dialling     chan struct{} // the agent dials who does not answer
	destination  net.Listener
	open         atomic.Int64 // connections at the destination
	dials        atomic.Int64 // of the agent, to who does not answer
	overdue      atomic.Int64 // of these, that nobody has given up

	mu      sync.Mutex
	server  *tunnelServer
	session *agent.Session
	client  *client.Client
}

func newStage(t *testing.T, p *pki, mode server.Mode, packets bool) *stage {
	s := &stage{p: p, mode: mode, dialling: make(chan struct{}, 1), destination: listen(t, "tcp", "127.0.0.1:0")}
	relay := relayFrames
	if mode == server.ModeHTTPConnect {
		relay = relayBytes
	}
	s.setUp(t, "server")
	s.front = frontLink(t, func() string { return s.now().front }, relay)
	s.agent = agentLink(t, p, func() string { return s.now().agents })
	s.agent.packets = packets
	go serveOn(s.destination, s.serve)
	t.Cleanup(func() {
		s.front.cut()
		s.agent.cut()
	})
	return s
}

// now is the server that there is.
func (s *stage) now() *tunnelServer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server
}

// serve sends back what comes, and ends after an exclamation mark.
func (s *stage) serve(c net.Conn) {
	s.open.Add(1)
	defer s.open.Add(-1)
	defer c.Close()
	for buf := make([]byte, 100); ; {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		if _, err = c.Write(buf[:n]); err != nil || buf[0] == '!' {
			return
		}
	}
}

// setUp starts an end.
func (s *stage) setUp(t *testing.T, end string) {
	switch end {
	case "server":
		next := ourServer(t, s.p, transport{s.mode, true})
		s.mu.Lock()
		s.server = next
		s.mu.Unlock()
	case "front":
		s.client = client.New(func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", s.front.Addr().String())
		})
		t.Cleanup(s.client.Close)
	case "agent":
		var err error
		s.session, err = agent.Connect(t.Context(), s.agent.Addr().String(), agent.Options{ID: "a", TLS: s.p.agent, KeepaliveTime: time.Minute, Metrics: agent.NewMetrics(), Dial: s.dialDestination})
		must(t, err)
		t.Cleanup(s.session.Close)
		until(t, "the server has the agent", s.now().ready)
	}
}

const nobody = "nobody.example:1"

func (s *stage) dialDestination(ctx context.Context, network, address string) (net.Conn, error) {
	if address == nobody {
		s.dials.Add(1)
		defer s.dials.Add(-1)
		s.dialling <- struct{}{}
		if <-ctx.Done(); errors.Is(ctx.Err(), context.DeadlineExceeded) {
			s.overdue.Add(1)
		}
		return nil, ctx.Err()
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

// kill ends an end without a word to anybody.
func (s *stage) kill(end string) {
	if end != "agent" {
		s.front.cut()
	}
	if end != "front" {
		s.agent.cut()
	}
	switch end {
	case "server":
		over, cancel := context.WithCancel(context.Background())
		cancel()
		s.now().ours.Shutdown(over)
	case "front":
		s.client.Close()
	case "agent":
		s.session.Close()
	}
}

func (s *stage) dial(ctx context.Context, address string) (net.Conn, error) {
	if s.mode == server.ModeGRPC {
		return s.client.DialContext(ctx, "tcp", address)
	}
	return byConnect(ctx, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.front.Addr().String())
	}, address)
}

// play goes through a script. The error is that it could not.
func (s *stage) play(ctx context.Context, script string) error {
	if script == "given up" {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			select {
			case <-s.dialling:
				cancel()
			case <-ctx.Done():
			}
		}()
		_, err := s.dial(ctx, nobody)
		return err
	}
	conn, err := s.dial(ctx, s.destination.Addr().String())
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, map[bool]string{true: "!", false: "."}[script == "destination closes"]); err != nil {
		return err
	}
	if script == "drain" {
		s.session.Drain()
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return err
	}
	if script == "destination closes" {
		_, err = io.Copy(io.Discard, conn)
	}
	return err
}

// kills plays a script up to a moment at which an end is killed, and has all go on.
func (s *stage) kills(t *testing.T, m moment, victim string) {
	var once sync.Once
	killed := make(chan struct{})
	watch := func(at *place) func(wire.Type, bool) {
		return func(packet wire.Type, up bool) {
			if m.at == at && m.packet == packet && m.back == (up == (at == atAgent)) {
				once.Do(func() {
					s.kill(victim)
					close(killed)
				})
			}
		}
	}
	s.front.saw, s.agent.saw = watch(atFront), watch(atAgent)
	go s.front.serve()
	go s.agent.serve()
	s.setUp(t, "agent")
	s.setUp(t, "front")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.play(ctx, m.script); ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("it does not end: %v", err)
	}
	select {
	case <-killed:
	case <-ctx.Done():
		t.Fatal("the packet has not come")
	}
	s.recover(t, victim)
	until(t, "what the agent has opened and dials ends", func() bool { return s.open.Load() == 0 && s.dials.Load() == 0 })
	if s.overdue.Load() > 0 {
		t.Error("a dial has been left to itself")
	}
	must(t, s.play(ctx, "exchange"))
	until(t, "the agent has nothing open", func() bool { return s.session.ConnCount() == 0 })
	atOnce(t, s.now().ours)
}

// recover sets up what was killed, once those who are left have noticed.
func (s *stage) recover(t *testing.T, victim string) {
	switch victim {
	case "server":
		if s.session.Wait() == nil {
			t.Error("the agent does not notice")
		}
		s.setUp(t, "server")
		s.setUp(t, "agent")
	case "agent":
		until(t, "the server has no agent", func() bool { return !s.now().ready() })
		s.setUp(t, "agent")
	case "front":
		until(t, "the agent has nothing open", func() bool { return s.session.ConnCount() == 0 })
		s.setUp(t, "front")
	}
}
