package konnectivity_test

import (
	"context"
	"log/slog"
	"net"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/client"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

// TestSuccessor checks that a server that is shutting down can have a successor at the same address. The agent
// connects to the successor while the old server still has a connection. The successor may have the same ID
// (KON-053, KON-055).
func TestSuccessor(t *testing.T) {
	for _, c := range []struct {
		name, id string
		packets  bool
	}{{"another ID", "second", false}, {"the same ID", "first", false}, {"packets", "second", true}} {
		t.Run(c.name, func(t *testing.T) {
			p := newPKI(t)
			first, firstSocket, firstAgents := runSingleServer(t, p, "first")
			second, secondSocket, secondAgents := runSingleServer(t, p, c.id)
			agents := make(chan string, 1)
			agents <- firstAgents
			l := newAgentLink(t, p, func() string {
				address := <-agents
				agents <- address
				return address
			})
			l.packets = c.packets
			go l.serve()
			t.Cleanup(l.cut)
			runAgent(t, p, "a", l.Addr().String())
			waitFor(t, "the first server has the agent", first.ready)
			echo := serve(t, echoConn)
			before := mustDial(t, dialThrough(t, firstSocket), echo)
			<-agents
			agents <- secondAgents
			first.stop()
			waitFor(t, "the second server has the agent", second.ready)
			checkEcho(t, before)
			after := mustDial(t, dialThrough(t, secondSocket), echo)
			_ = before.Close()
			first.checkExited(t)
			checkEcho(t, after)
		})
	}
}

// runSingleServer runs a server that reports a server count of 1, and whose grace period exceeds the test.
func runSingleServer(t testing.TB, p *pki, id string) (r *program, socket, agents string) {
	socket, agents = filepath.Join(t.TempDir(), "sock"), "127.0.0.1:"+freePort(t)
	c := server.Config{
		Options: server.Options{ID: id, Count: 1, Strategies: []server.Strategy{server.Default},
			KeepaliveTime: time.Minute, FrontendKeepaliveTime: time.Minute, Logger: slog.New(slog.DiscardHandler)},
		Mode: server.ModeGRPC, Socket: socket, AgentAddress: agents,
		AgentTLS:     server.TLS{CertFile: p.crt, KeyFile: p.key, ClientCAFile: p.ca},
		AdminAddress: "127.0.0.1:" + freePort(t), HealthAddress: "127.0.0.1:" + freePort(t), GracePeriod: time.Hour,
	}
	r = &program{health: c.HealthAddress, admin: c.AdminAddress}
	r.stop, r.exited = runInBackground(t, func(ctx context.Context) error { return server.Run(ctx, c) })
	return r, socket, agents
}

func dialThrough(t testing.TB, socket string) dialer {
	c := client.New(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	})
	t.Cleanup(c.Close)
	return func(ctx context.Context, address string) (net.Conn, error) { return c.DialContext(ctx, "tcp", address) }
}

// TestReferenceServerShutdown checks that the reference server, which waits for its agents, exits when a
// Trellis agent has no open connections (KON-050, KON-053).
func TestReferenceServerShutdown(t *testing.T) {
	p := newPKI(t)
	agents, health, frontend := freePort(t), freePort(t), filepath.Join(t.TempDir(), "sock")
	cmd := exec.Command(reference(t, "proxy-server"), "--mode=grpc", "--graceful-shutdown-timeout=1h",
		"--agent-port="+agents, "--health-port="+health, "--admin-port="+freePort(t),
		"--cluster-cert="+p.crt, "--cluster-key="+p.key, "--cluster-ca-cert="+p.ca,
		"--server-id=reference", "--uds-name="+frontend, "--server-port=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	runAgent(t, p, "a", "127.0.0.1:"+agents)
	waitFor(t, "the server is ready", func() bool { return answersOK("http://127.0.0.1:" + health + "/readyz") })
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-ended:
	case <-time.After(testTimeout):
		t.Error("the server waits for the agent")
	}
}
