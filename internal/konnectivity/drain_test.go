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

// program is a tunnel server or an agent that runs as it does in its command, with health and admin ports.
type program struct {
	health, admin string     // addresses
	stop          func()     // as SIGTERM does
	exited        chan error // receives the result; nil for a reference program
}

// ready reports whether the readiness endpoint returns 200.
func (r *program) ready() bool { return answersOK("http://" + r.health + "/readyz") }

// openConns returns the number of open connections of an agent.
func (r *program) openConns(t testing.TB) int { return r.metric(t, "agent_open_endpoint_connections") }

// metric returns the value of a metric.
func (r *program) metric(t testing.TB, name string) int {
	t.Helper()
	resp, err := http.Get("http://" + r.admin + "/metrics")
	must(t, err)
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	_ = resp.Body.Close()
	found := regexp.MustCompile(`(?m)^konnectivity_network_proxy_` + name + ` (\d+)$`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("no metric %s in %s", name, text)
	}
	n, err := strconv.Atoi(string(found[1]))
	must(t, err)
	return n
}

// checkExited fails the test unless the program exits within promptLimit.
func (r *program) checkExited(t testing.TB) {
	t.Helper()
	select {
	case err := <-r.exited:
		must(t, err)
	case <-time.After(promptLimit):
		t.Errorf("the program has not exited within %v, without open connections", promptLimit)
	}
}

func runInBackground(t testing.TB, run func(context.Context) error) (stop func(), exited chan error) {
	ctx, cancel := context.WithCancel(context.Background())
	exited = make(chan error, 1)
	finished := make(chan struct{})
	go func() {
		exited <- run(ctx)
		close(finished)
	}()
	t.Cleanup(func() {
		cancel()
		<-finished
	})
	return cancel, exited
}

func runAgent(t testing.TB, p *pki, id, address string) *program {
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	c := agent.Config{Host: "127.0.0.1", ID: id, CAFile: p.ca, CertFile: p.crt, KeyFile: p.key,
		KeepaliveTime: time.Minute, SyncInterval: 10 * time.Millisecond, SyncIntervalCap: 50 * time.Millisecond,
		LeaseSelector: labels.Everything(), HealthAddress: "127.0.0.1:" + freePort(t),
		AdminAddress: "127.0.0.1:" + freePort(t)}
	c.Port, err = strconv.Atoi(port)
	must(t, err)
	r := &program{health: c.HealthAddress, admin: c.AdminAddress}
	r.stop, r.exited = runInBackground(t, func(ctx context.Context) error { return agent.Run(ctx, c) })
	return r
}

func runReferenceAgent(t testing.TB, p *pki, id, address string) *program {
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	health, admin := freePort(t), freePort(t)
	cmd := start(t, reference(t, "proxy-agent"), "--proxy-server-host=127.0.0.1", "--proxy-server-port="+port,
		"--ca-cert="+p.ca, "--agent-cert="+p.crt, "--agent-key="+p.key,
		"--health-server-port="+health, "--admin-server-port="+admin, "--agent-id="+id)
	return &program{health: "127.0.0.1:" + health, admin: "127.0.0.1:" + admin,
		stop: func() { _ = cmd.Process.Signal(syscall.SIGTERM) }}
}

// runServer runs a tunnel server whose frontend is a Unix socket.
func runServer(t testing.TB, p *pki, mode server.Mode, id string) (r *program, socket, agents string) {
	socket, agents = filepath.Join(t.TempDir(), "sock"), "127.0.0.1:"+freePort(t)
	c := server.Config{
		Options: server.Options{ID: id, Count: 2, Strategies: []server.Strategy{server.Default},
			KeepaliveTime: time.Minute, FrontendKeepaliveTime: time.Minute, Logger: slog.New(slog.DiscardHandler)},
		Mode: mode, Socket: socket, AgentAddress: agents,
		AgentTLS:     server.TLS{CertFile: p.crt, KeyFile: p.key, ClientCAFile: p.ca},
		AdminAddress: "127.0.0.1:" + freePort(t), HealthAddress: "127.0.0.1:" + freePort(t), GracePeriod: testTimeout,
	}
	r = &program{health: c.HealthAddress, admin: c.AdminAddress}
	r.stop, r.exited = runInBackground(t, func(ctx context.Context) error { return server.Run(ctx, c) })
	return r, socket, agents
}

// checkEcho checks that each connection echoes.
func checkEcho(t testing.TB, conns ...net.Conn) {
	t.Helper()
	for _, c := range conns {
		_ = c.SetDeadline(time.Now().Add(testTimeout))
		if _, err := io.WriteString(c, "data"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, len("data"))); err != nil {
			t.Fatal(err)
		}
	}
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

func echoConn(c net.Conn) {
	_, _ = io.Copy(c, c)
	_ = c.Close()
}

// TestAgentShutdown checks that an agent that gets SIGTERM accepts no new connections, finishes its open ones
// and then exits. New connections use another agent (KON-050, KON-053, KON-055).
func TestAgentShutdown(t *testing.T) {
	for _, c := range []struct {
		name    string
		server  func(testing.TB, *pki, transport) *tunnelServer
		agent   func(t testing.TB, p *pki, id, address string) *program
		packets bool
	}{
		{"Trellis server, Trellis agent", startTrellisServer, runAgent, false},
		{"Trellis server, Trellis agent, packets", startTrellisServer, runAgent, true},
		{"Trellis server, reference agent", startTrellisServer, runReferenceAgent, false},
		{"reference server, Trellis agent", startReferenceServer, runAgent, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPKI(t)
			s := c.server(t, p, transports[0])
			address := s.agents
			if c.packets {
				l := newAgentLink(t, p, func() string { return s.agents })
				l.packets = true
				go l.serve()
				t.Cleanup(l.cut)
				address = l.Addr().String()
			}
			checkAgentShutdown(t, s, trellisClient(t, p, transports[0], s.frontend),
				func(id string) *program { return c.agent(t, p, id, address) })
		})
	}
}

func checkAgentShutdown(t *testing.T, s *tunnelServer, dial dialer, run func(id string) *program) {
	echo := serve(t, echoConn)
	first := run("first")
	waitFor(t, "the server is ready", func() bool { return s.ready() && first.ready() })
	var before, after []net.Conn
	for range 3 {
		before = append(before, mustDial(t, dial, echo))
	}
	second := run("second")
	waitFor(t, "the second agent is connected", second.ready)
	waitFor(t, "the second agent opens connections", func() bool {
		before = append(before, mustDial(t, dial, echo))
		return second.openConns(t) > 0
	})
	checkEcho(t, before...)
	open := first.openConns(t)
	first.stop()
	waitFor(t, "the first agent opens no more connections", func() bool {
		closeAll(after)
		waitFor(t, "closed connections end", func() bool { return first.openConns(t) == open })
		after = nil
		for range 20 { // so many that the first agent would get some if it were not draining
			after = append(after, mustDial(t, dial, echo))
		}
		return first.openConns(t) == open
	})
	checkEcho(t, before...)
	closeAll(before)
	if first.exited != nil {
		first.checkExited(t)
	} else {
		waitFor(t, "the first agent has no open connections", func() bool { return first.openConns(t) == 0 })
	}
	after = append(after, mustDial(t, dial, echo))
	checkEcho(t, after...)
	second.stop()
	closeAll(after)
}

// TestServerShutdown checks that a server that gets SIGTERM accepts no new connections, finishes its open ones
// and then exits. New connections use another server (KON-053, KON-055).
func TestServerShutdown(t *testing.T) {
	for _, mode := range []server.Mode{server.ModeGRPC, server.ModeHTTPConnect} {
		for _, packets := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, Trellis agent, packets=%v", mode, packets),
				func(t *testing.T) { checkServerShutdown(t, mode, packets, runAgent) })
		}
		t.Run(string(mode)+", reference agent",
			func(t *testing.T) { checkServerShutdown(t, mode, false, runReferenceAgent) })
	}
}

func checkServerShutdown(t *testing.T, mode server.Mode, packets bool,
	run func(t testing.TB, p *pki, id, address string) *program) {
	p := newPKI(t)
	first, firstSocket, firstAgents := runServer(t, p, mode, "first")
	second, secondSocket, secondAgents := runServer(t, p, mode, "second")
	// random, because a fixed order could always lead the reference agent to the same server
	balancer := newAgentLink(t, p, func() string {
		return []string{firstAgents, secondAgents}[rand.IntN(2)]
	})
	balancer.packets = packets
	go balancer.serve()
	t.Cleanup(balancer.cut)
	run(t, p, "a", balancer.Addr().String())
	waitFor(t, "both servers have the agent", func() bool { return first.ready() && second.ready() })
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
		dial = func(ctx context.Context, address string) (net.Conn, error) { return dialConnect(ctx, connect, address) }
	}
	echo := serve(t, echoConn)
	before := []net.Conn{mustDial(t, dial, echo), mustDial(t, dial, echo)}
	checkEcho(t, before...)
	first.stop()
	waitFor(t, "the first server accepts no new connections", func() bool {
		conn, err := net.Dial("unix", firstSocket)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	after := []net.Conn{mustDial(t, dial, echo), mustDial(t, dial, echo)}
	checkEcho(t, append(after, before...)...)
	closeAll(before)
	first.checkExited(t)
	after = append(after, mustDial(t, dial, echo))
	checkEcho(t, after...)
	closeAll(after)
}

// TestClientClose checks that closing the API server's client closes all its connections, including those
// through a server that is shutting down (KON-053).
func TestClientClose(t *testing.T) {
	p, tr := newPKI(t), transport{server.ModeGRPC, true}
	first, second := startTrellisServer(t, p, tr), startTrellisServer(t, p, tr)
	connectTrellisAgent(t, p, first.agents)
	connectTrellisAgent(t, p, second.agents)
	waitFor(t, "both servers have an agent", func() bool { return first.ready() && second.ready() })
	frontends := make(chan string, 2)
	frontends <- first.frontend
	frontends <- second.frontend
	c := client.New(func(ctx context.Context) (net.Conn, error) { return tr.connect(p, <-frontends)(ctx) })
	dial := func(ctx context.Context, address string) (net.Conn, error) { return c.DialContext(ctx, "tcp", address) }
	echo := serve(t, echoConn)
	conns := []net.Conn{mustDial(t, dial, echo)}
	go first.trellis.Shutdown(t.Context())
	waitFor(t, "new connections use the second server", func() bool {
		conns = append(conns, mustDial(t, dial, echo))
		return len(frontends) == 0
	})
	checkEcho(t, conns...)
	c.Close()
	for i, conn := range conns {
		_ = conn.SetDeadline(time.Now().Add(testTimeout))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d of %d: got error %v, want it closed", i, len(conns), err)
		}
	}
}

// TestRetryAfterGoAway checks that a stream which a server refuses during shutdown is retried with another
// server (KON-053).
func TestRetryAfterGoAway(t *testing.T) {
	p, tr := newPKI(t), transport{server.ModeGRPC, true}
	s := startTrellisServer(t, p, tr)
	connectTrellisAgent(t, p, s.agents)
	waitFor(t, "the server has the agent", s.ready)
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
			if frame.Header().Type == http2.FrameHeaders { // refuse the stream that was already sent
				_ = f.WriteGoAway(1, http2.ErrCodeNo, nil)
				_ = f.WriteRSTStream(1, http2.ErrCodeRefusedStream)
			}
		}
	}()
	draining := make(chan net.Conn, 1)
	draining <- near
	c := client.New(func(ctx context.Context) (net.Conn, error) {
		select {
		case conn := <-draining:
			return conn, nil
		default:
			return tr.connect(p, s.frontend)(ctx)
		}
	})
	defer c.Close()
	dial := func(ctx context.Context, address string) (net.Conn, error) { return c.DialContext(ctx, "tcp", address) }
	checkEcho(t, mustDial(t, dial, serve(t, echoConn)))
}
