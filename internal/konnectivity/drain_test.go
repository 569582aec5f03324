package konnectivity_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/trellis-k8s/trellis/internal/konnectivity/agent"
	"github.com/trellis-k8s/trellis/internal/konnectivity/client"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

// runs is an end as its program runs it.
type runs struct {
	health, admin string     // addresses
	leave         func()     // as by SIGTERM
	ended         chan error // when it has left; nil: it does not by itself
}

// ready says whether it is connected to the other end.
func (r *runs) ready() bool { return answersOK("http://" + r.health + "/readyz") }

// open is how many connections an agent has.
func (r *runs) open(t testing.TB) int { return r.metric(t, "agent_open_endpoint_connections") }

// metric is the value of one. Their names are the reference's.
func (r *runs) metric(t testing.TB, name string) int {
	t.Helper()
	resp, err := http.Get("http://" + r.admin + "/metrics")
	must(t, err)
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	_ = resp.Body.Close()
	found := regexp.MustCompile(`(?m)^konnectivity_network_proxy_` + name + ` (\d+)$`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("there is no metric %s in %s", name, text)
	}
	n, err := strconv.Atoi(string(found[1]))
	must(t, err)
	return n
}

// left fails the test unless the end has left at once.
func (r *runs) left(t testing.TB) {
	t.Helper()
	select {
	case err := <-r.ended:
		must(t, err)
	case <-time.After(lingers):
		t.Errorf("it has not left after %v, with nothing open", lingers)
	}
}

func background(t testing.TB, run func(context.Context) error) (leave func(), ended chan error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended = make(chan error, 1)
	over := make(chan struct{})
	go func() {
		ended <- run(ctx)
		close(over)
	}()
	t.Cleanup(func() {
		cancel()
		<-over
	})
	return cancel, ended
}

func runAgent(t testing.TB, p *pki, id, address string) *runs {
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	c := agent.Config{Host: "127.0.0.1", ID: id, CAFile: p.ca, CertFile: p.crt, KeyFile: p.key, KeepaliveTime: time.Minute, SyncInterval: 10 * time.Millisecond, SyncIntervalCap: 50 * time.Millisecond,
		LeaseSelector: labels.Everything(), HealthAddress: "127.0.0.1:" + freePort(t), AdminAddress: "127.0.0.1:" + freePort(t)}
	c.Port, err = strconv.Atoi(port)
	must(t, err)
	r := &runs{health: c.HealthAddress, admin: c.AdminAddress}
	r.leave, r.ended = background(t, func(ctx context.Context) error { return agent.Run(ctx, c) })
	return r
}

func runReferenceAgent(t testing.TB, p *pki, id, address string) *runs {
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	health, admin := freePort(t), freePort(t)
	cmd := start(t, reference(t, "proxy-agent"), "--proxy-server-host=127.0.0.1", "--proxy-server-port="+port, "--ca-cert="+p.ca, "--agent-cert="+p.crt, "--agent-key="+p.key,
		"--health-server-port="+health, "--admin-server-port="+admin, "--agent-id="+id)
	return &runs{health: "127.0.0.1:" + health, admin: "127.0.0.1:" + admin, leave: func() { _ = cmd.Process.Signal(syscall.SIGTERM) }}
}

// runServer has a socket for fronts.
func runServer(t testing.TB, p *pki, mode server.Mode, id string) (r *runs, socket, agents string) {
	socket, agents = filepath.Join(t.TempDir(), "front"), "127.0.0.1:"+freePort(t)
	c := server.Config{
		Options: server.Options{ID: id, Count: 2, Strategies: []server.Strategy{server.Default}, KeepaliveTime: time.Minute, FrontendKeepaliveTime: time.Minute, Logger: slog.New(slog.DiscardHandler)},
		Mode:    mode, Socket: socket, AgentAddress: agents, AgentTLS: server.TLS{CertFile: p.crt, KeyFile: p.key, ClientCAFile: p.ca},
		AdminAddress: "127.0.0.1:" + freePort(t), HealthAddress: "127.0.0.1:" + freePort(t), GracePeriod: patience,
	}
	r = &runs{health: c.HealthAddress, admin: c.AdminAddress}
	r.leave, r.ended = background(t, func(ctx context.Context) error { return server.Run(ctx, c) })
	return r, socket, agents
}

// echoes has something go there and back.
func echoes(t testing.TB, conns ...net.Conn) {
	t.Helper()
	for _, c := range conns {
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(c, "still there"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, len("still there"))); err != nil {
			t.Fatal(err)
		}
	}
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

func sendsBack(c net.Conn) {
	_, _ = io.Copy(c, c)
	_ = c.Close()
}

// KON-050 KON-053 KON-055: an agent that is told to end asks for nothing new: what goes through it goes on until it ends, what is asked for after
// that goes to another, and the agent leaves when its last connection has ended.
func TestAgentLeaves(t *testing.T) {
	for _, c := range []struct {
		name    string
		server  func(testing.TB, *pki, transport) *tunnelServer
		agent   func(t testing.TB, p *pki, id, address string) *runs
		packets bool
	}{
		{"our server, our agent", ourServer, runAgent, false},
		{"our server, our agent, packets", ourServer, runAgent, true},
		{"our server, the reference's agent", ourServer, runReferenceAgent, false},
		{"the reference's server, our agent", referenceServer, runAgent, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPKI(t)
			s := c.server(t, p, transports[0])
			at := s.agents
			if c.packets {
				l := agentLink(t, p, func() string { return s.agents })
				l.packets = true
				go l.serve()
				t.Cleanup(l.cut)
				at = l.Addr().String()
			}
			agentLeaves(t, s, ourFront(t, p, transports[0], s.front), func(id string) *runs { return c.agent(t, p, id, at) })
		})
	}
}

func agentLeaves(t *testing.T, s *tunnelServer, dial dialer, run func(id string) *runs) {
	echo := serve(t, sendsBack)
	first := run("first")
	until(t, "the server is ready", func() bool { return s.ready() && first.ready() })
	var before, after []net.Conn
	for range 3 {
		before = append(before, open(t, dial, echo))
	}
	second := run("second")
	until(t, "the second agent is connected", second.ready)
	until(t, "the second agent is asked", func() bool {
		before = append(before, open(t, dial, echo))
		return second.open(t) > 0
	})
	echoes(t, before...)
	had := first.open(t)
	first.leave()
	until(t, "the first agent is asked no more", func() bool {
		closeAll(after)
		until(t, "connections that are closed end", func() bool { return first.open(t) == had })
		after = nil
		for range 20 { // some would be the first's
			after = append(after, open(t, dial, echo))
		}
		return first.open(t) == had
	})
	echoes(t, before...)
	closeAll(before)
	if first.ended != nil {
		first.left(t)
	} else {
		until(t, "the first agent has nothing open", func() bool { return first.open(t) == 0 })
	}
	after = append(after, open(t, dial, echo))
	echoes(t, after...)
	second.leave()
	closeAll(after)
}

// KON-053 KON-055: a server that is told to end takes nothing new: what goes through it goes on until it ends, what is asked for after that goes
// through another, and it leaves when its last connection has ended.
func TestServerLeaves(t *testing.T) {
	for _, mode := range []server.Mode{server.ModeGRPC, server.ModeHTTPConnect} {
		for _, packets := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, our agent, packets=%v", mode, packets), func(t *testing.T) { serverLeaves(t, mode, packets, runAgent) })
		}
		t.Run(string(mode)+", the reference's agent", func(t *testing.T) { serverLeaves(t, mode, false, runReferenceAgent) })
	}
}

func serverLeaves(t *testing.T, mode server.Mode, packets bool, run func(t testing.TB, p *pki, id, address string) *runs) {
	p := newPKI(t)
	first, firstSocket, firstAgents := runServer(t, p, mode, "first")
	second, secondSocket, secondAgents := runServer(t, p, mode, "second")
	balancer := agentLink(t, p, func() string { // by chance, as the reference's agent may dial in step with turns
		return []string{firstAgents, secondAgents}[rand.IntN(2)]
	})
	balancer.packets = packets
	go balancer.serve()
	t.Cleanup(balancer.cut)
	run(t, p, "a", balancer.Addr().String())
	until(t, "both servers have the agent", func() bool { return first.ready() && second.ready() })
	connect := func(ctx context.Context) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", firstSocket)
		if err != nil {
			return (&net.Dialer{}).DialContext(ctx, "unix", secondSocket)
		}
		return conn, nil
	}
	c := client.New(connect)
	t.Cleanup(c.Close)
	dial := func(ctx context.Context, address string) (net.Conn, error) { return c.DialContext(ctx, "tcp", address) }
	if mode == server.ModeHTTPConnect {
		dial = func(ctx context.Context, address string) (net.Conn, error) { return byConnect(ctx, connect, address) }
	}
	echo := serve(t, sendsBack)
	before := []net.Conn{open(t, dial, echo), open(t, dial, echo)}
	echoes(t, before...)
	first.leave()
	until(t, "the first server takes nothing new", func() bool {
		conn, err := net.Dial("unix", firstSocket)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	after := []net.Conn{open(t, dial, echo), open(t, dial, echo)}
	echoes(t, append(after, before...)...)
	closeAll(before)
	first.left(t)
	after = append(after, open(t, dial, echo))
	echoes(t, after...)
	closeAll(after)
}

// KON-053: when the API server's client is closed so is all that goes through it, also by a server that takes nothing new.
func TestClientCloses(t *testing.T) {
	p, tr := newPKI(t), transport{server.ModeGRPC, true}
	first, second := ourServer(t, p, tr), ourServer(t, p, tr)
	ourAgent(t, p, first.agents)
	ourAgent(t, p, second.agents)
	until(t, "both servers have an agent", func() bool { return first.ready() && second.ready() })
	fronts := make(chan string, 2)
	fronts <- first.front
	fronts <- second.front
	c := client.New(func(ctx context.Context) (net.Conn, error) { return tr.connect(p, <-fronts)(ctx) })
	dial := func(ctx context.Context, address string) (net.Conn, error) { return c.DialContext(ctx, "tcp", address) }
	echo := serve(t, sendsBack)
	conns := []net.Conn{open(t, dial, echo)}
	go first.ours.Shutdown(t.Context())
	until(t, "what is new goes through the second", func() bool {
		conns = append(conns, open(t, dial, echo))
		return len(fronts) == 0
	})
	echoes(t, conns...)
	c.Close()
	for i, conn := range conns {
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d of %d: %v", i, len(conns), err)
		}
	}
}

// KON-053: what a server has refused, as it begins to leave, is asked for of another.
func TestRefusedByServerThatLeaves(t *testing.T) {
	p, tr := newPKI(t), transport{server.ModeGRPC, true}
	s := ourServer(t, p, tr)
	ourAgent(t, p, s.agents)
	until(t, "the server has the agent", s.ready)
	near, far := net.Pipe()
	defer far.Close()
	go func() {
		_, _ = io.ReadFull(far, make([]byte, len(http2.ClientPreface)))
		f := newFrames(far)
		_ = f.WriteSettings()
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if frame.Header().Type == http2.FrameHeaders { // it was under way
				_ = f.WriteGoAway(1, http2.ErrCodeNo, nil)
				_ = f.WriteRSTStream(1, http2.ErrCodeRefusedStream)
			}
		}
	}()
	leaving := make(chan net.Conn, 1)
	leaving <- near
	c := client.New(func(ctx context.Context) (net.Conn, error) {
		select {
		case conn := <-leaving:
			return conn, nil
		default:
			return tr.connect(p, s.front)(ctx)
		}
	})
	defer c.Close()
	conn := open(t, func(ctx context.Context, address string) (net.Conn, error) { return c.DialContext(ctx, "tcp", address) }, serve(t, sendsBack))
	echoes(t, conn)
}
