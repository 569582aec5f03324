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

// killPoint defines when a process is killed: directly after a certain packet of a script has been forwarded.
type killPoint struct {
	script    string
	at        *linkSide
	packet    wire.Type
	fromAgent bool // the packet comes from the agent's side
}

// linkSide is one of the two links, with the processes that it connects.
type linkSide struct {
	name string
	ends [2]string
}

var (
	atFrontend = &linkSide{"frontend", [2]string{"frontend", "server"}}
	atAgent    = &linkSide{"agent", [2]string{"server", "agent"}}
)

func (m killPoint) String() string {
	direction := "to the agent"
	if m.fromAgent {
		direction = "from the agent"
	}
	return fmt.Sprintf("%s, %v %s at the %s", m.script, m.packet, direction, m.at.name)
}

// killPoints returns the points at which a test kills a process. There is one for each packet type and each
// direction in which the type is sent.
func killPoints(mode server.Mode, packets bool) (all []killPoint) {
	for _, at := range []*linkSide{atFrontend, atAgent} {
		all = append(all, []killPoint{
			{"cancelled dial", at, wire.DialReq, false},
			{"exchange", at, wire.DialReq, false}, {"exchange", at, wire.DialRsp, true},
			{"exchange", at, wire.Data, false}, {"exchange", at, wire.Data, true},
			{"exchange", at, wire.CloseReq, false},
		}...)
	}
	if mode == server.ModeGRPC {
		all = append(all, killPoint{"exchange", atFrontend, wire.CloseRsp, true},
			killPoint{"cancelled dial", atFrontend, wire.DialCls, false})
	} else {
		all = append(all, killPoint{"destination closes", atFrontend, wire.CloseRsp, true},
			killPoint{"cancelled dial", atFrontend, wire.CloseReq, false})
	}
	if packets { // a CONNECT stream ends without a response
		all = append(all, killPoint{"exchange", atAgent, wire.CloseRsp, true})
	}
	return append(all, killPoint{"destination closes", atAgent, wire.CloseRsp, true},
		killPoint{"cancelled dial", atAgent, wire.DialCls, false}, killPoint{"drain", atAgent, wire.Drain, true})
}

// TestKilledAtEachPacket kills a process directly after each packet that the process sends or receives, in every
// mode. It checks that the operation ends, that the other processes continue with a new process, and that all
// resources of the old process are released (KON-050, KON-053).
func TestKilledAtEachPacket(t *testing.T) {
	p := newPKI(t)
	for _, mode := range []server.Mode{server.ModeGRPC, server.ModeHTTPConnect} {
		for _, packets := range []bool{false, true} {
			for _, m := range killPoints(mode, packets) {
				for _, victim := range m.at.ends {
					name := fmt.Sprintf("%s, packets=%v, %v, %s killed", mode, packets, m, victim)
					noLeaks := leakCheck(t)
					t.Run(name, func(t *testing.T) { newKillRig(t, p, mode, packets).run(t, m, victim) })
					noLeaks()
				}
			}
		}
	}
}

// killRig is a tunnel whose processes can be killed and restarted, and the links between them.
type killRig struct {
	p               *pki
	mode            server.Mode
	frontend, agent *link
	dialling        chan struct{} // receives when the agent dials the unresponsive destination
	destination     net.Listener
	open            atomic.Int64 // connections at the destination
	dials           atomic.Int64 // pending dials of the unresponsive destination
	uncancelled     atomic.Int64 // dials that ended by timeout

	mu      sync.Mutex
	server  *tunnelServer
	session *agent.Session
	client  *client.Client
}

func newKillRig(t *testing.T, p *pki, mode server.Mode, packets bool) *killRig {
	r := &killRig{p: p, mode: mode, dialling: make(chan struct{}, 1), destination: listen(t, "tcp", "127.0.0.1:0")}
	relay := relayFrames
	if mode == server.ModeHTTPConnect {
		relay = relayBytes
	}
	r.start(t, "server")
	r.frontend = newFrontendLink(t, func() string { return r.current().frontend }, relay)
	r.agent = newAgentLink(t, p, func() string { return r.current().agents })
	r.agent.packets = packets
	go serveOn(r.destination, r.serve)
	t.Cleanup(func() {
		r.frontend.cut()
		r.agent.cut()
	})
	return r
}

// current returns the running server.
func (r *killRig) current() *tunnelServer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.server
}

// serve echoes, and closes the connection after an exclamation mark.
func (r *killRig) serve(c net.Conn) {
	r.open.Add(1)
	defer r.open.Add(-1)
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

// start starts a process.
func (r *killRig) start(t *testing.T, process string) {
	switch process {
	case "server":
		next := startTrellisServer(t, r.p, transport{r.mode, true})
		r.mu.Lock()
		r.server = next
		r.mu.Unlock()
	case "frontend":
		r.client = client.New(func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", r.frontend.Addr().String())
		})
		t.Cleanup(r.client.Close)
	case "agent":
		var err error
		r.session, err = agent.Connect(t.Context(), r.agent.Addr().String(),
			agent.Options{ID: "a", TLS: r.p.agent, KeepaliveTime: time.Minute, Metrics: agent.NewMetrics(),
				Dial: r.dialDestination})
		must(t, err)
		t.Cleanup(r.session.Close)
		waitFor(t, "the server has the agent", r.current().ready)
	}
}

const unresponsive = "unresponsive.example:1" // a dial of this address never ends

func (r *killRig) dialDestination(ctx context.Context, network, address string) (net.Conn, error) {
	if address == unresponsive {
		r.dials.Add(1)
		defer r.dials.Add(-1)
		r.dialling <- struct{}{}
		if <-ctx.Done(); errors.Is(ctx.Err(), context.DeadlineExceeded) {
			r.uncancelled.Add(1)
		}
		return nil, ctx.Err()
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

// kill ends a process without a close notice.
func (r *killRig) kill(process string) {
	if process != "agent" {
		r.frontend.cut()
	}
	if process != "frontend" {
		r.agent.cut()
	}
	switch process {
	case "server":
		canceled, cancel := context.WithCancel(context.Background())
		cancel()
		r.current().trellis.Shutdown(canceled)
	case "frontend":
		r.client.Close()
	case "agent":
		r.session.Close()
	}
}

func (r *killRig) dial(ctx context.Context, address string) (net.Conn, error) {
	if r.mode == server.ModeGRPC {
		return r.client.DialContext(ctx, "tcp", address)
	}
	return dialConnect(ctx, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.frontend.Addr().String())
	}, address)
}

// runScript runs a script. It returns an error if the script fails.
func (r *killRig) runScript(ctx context.Context, script string) error {
	if script == "cancelled dial" {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			select {
			case <-r.dialling:
				cancel()
			case <-ctx.Done():
			}
		}()
		_, err := r.dial(ctx, unresponsive)
		return err
	}
	conn, err := r.dial(ctx, r.destination.Addr().String())
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testTimeout))
	request := map[bool]string{true: "!", false: "."}[script == "destination closes"]
	if _, err := io.WriteString(conn, request); err != nil {
		return err
	}
	if script == "drain" {
		r.session.Drain()
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return err
	}
	if script == "destination closes" {
		_, err = io.Copy(io.Discard, conn)
	}
	return err
}

// run runs a script and kills a process at a point of the script. It then restarts the process and runs another
// script.
func (r *killRig) run(t *testing.T, m killPoint, victim string) {
	var once sync.Once
	killed := make(chan struct{})
	watch := func(at *linkSide) func(wire.Type, bool) {
		return func(packet wire.Type, up bool) {
			if m.at == at && m.packet == packet && m.fromAgent == (up == (at == atAgent)) {
				once.Do(func() {
					r.kill(victim)
					close(killed)
				})
			}
		}
	}
	r.frontend.onPacket, r.agent.onPacket = watch(atFrontend), watch(atAgent)
	go r.frontend.serve()
	go r.agent.serve()
	r.start(t, "agent")
	r.start(t, "frontend")
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := r.runScript(ctx, m.script); ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the script does not end: %v", err)
	}
	select {
	case <-killed:
	case <-ctx.Done():
		t.Fatal("the packet was not sent")
	}
	r.restart(t, victim)
	waitFor(t, "connections and dials of the agent end", func() bool {
		return r.open.Load() == 0 && r.dials.Load() == 0
	})
	if r.uncancelled.Load() > 0 {
		t.Error("a dial was not cancelled")
	}
	must(t, r.runScript(ctx, "exchange"))
	waitFor(t, "the agent has no open connections", func() bool { return r.session.ConnCount() == 0 })
	shutDownPromptly(t, r.current().trellis)
}

// restart restarts the killed process, after the others have detected its end.
func (r *killRig) restart(t *testing.T, victim string) {
	switch victim {
	case "server":
		if r.session.Wait() == nil {
			t.Error("Wait returns nil for a killed server")
		}
		r.start(t, "server")
		r.start(t, "agent")
	case "agent":
		waitFor(t, "the server has no agent", func() bool { return !r.current().ready() })
		r.start(t, "agent")
	case "frontend":
		waitFor(t, "the agent has no open connections", func() bool { return r.session.ConnCount() == 0 })
		r.start(t, "frontend")
	}
}
