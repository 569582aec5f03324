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

// KON-053 KON-055: while a server that is told to end waits for a connection, its successor at the same address gets the agent, also where that has
// the same ID.
func TestSuccessor(t *testing.T) {
	for _, c := range []struct {
		name, id string
		packets  bool
	}{{"another ID", "second", false}, {"the same ID", "first", false}, {"packets", "second", true}} {
		t.Run(c.name, func(t *testing.T) {
			p := newPKI(t)
			first, firstSocket, firstAgents := runOnlyServer(t, p, "first")
			second, secondSocket, secondAgents := runOnlyServer(t, p, c.id)
			agents := make(chan string, 1)
			agents <- firstAgents
			l := agentLink(t, p, func() string {
				at := <-agents
				agents <- at
				return at
			})
			l.packets = c.packets
			go l.serve()
			t.Cleanup(l.cut)
			runAgent(t, p, "a", l.Addr().String())
			until(t, "the first server has the agent", first.ready)
			echo := serve(t, sendsBack)
			before := open(t, dialThrough(t, firstSocket), echo)
			<-agents
			agents <- secondAgents
			first.leave()
			until(t, "the second server has the agent", second.ready)
			echoes(t, before)
			after := open(t, dialThrough(t, secondSocket), echo)
			_ = before.Close()
			first.left(t)
			echoes(t, after)
		})
	}
}

// runOnlyServer has one that says that there is no other, and waits for its connections for as long as a test may last.
func runOnlyServer(t testing.TB, p *pki, id string) (r *runs, socket, agents string) {
	socket, agents = filepath.Join(t.TempDir(), "front"), "127.0.0.1:"+freePort(t)
	c := server.Config{
		Options: server.Options{ID: id, Count: 1, Strategies: []server.Strategy{server.Default}, KeepaliveTime: time.Minute, FrontendKeepaliveTime: time.Minute, Logger: slog.New(slog.DiscardHandler)},
		Mode:    server.ModeGRPC, Socket: socket, AgentAddress: agents, AgentTLS: server.TLS{CertFile: p.crt, KeyFile: p.key, ClientCAFile: p.ca},
		AdminAddress: "127.0.0.1:" + freePort(t), HealthAddress: "127.0.0.1:" + freePort(t), GracePeriod: time.Hour,
	}
	r = &runs{health: c.HealthAddress, admin: c.AdminAddress}
	r.leave, r.ended = background(t, func(ctx context.Context) error { return server.Run(ctx, c) })
	return r, socket, agents
}

func dialThrough(t testing.TB, socket string) dialer {
	c := client.New(func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", socket) })
	t.Cleanup(c.Close)
	return func(ctx context.Context, address string) (net.Conn, error) { return c.DialContext(ctx, "tcp", address) }
}

// KON-050 KON-053: the reference's server, which waits for its agents, ends when ours has nothing open.
func TestReferenceServerLeaves(t *testing.T) {
	p := newPKI(t)
	agents, health, front := freePort(t), freePort(t), filepath.Join(t.TempDir(), "front")
	cmd := exec.Command(reference(t, "proxy-server"), "--mode=grpc", "--graceful-shutdown-timeout=1h", "--agent-port="+agents, "--health-port="+health, "--admin-port="+freePort(t),
		"--cluster-cert="+p.crt, "--cluster-key="+p.key, "--cluster-ca-cert="+p.ca, "--server-id=reference", "--uds-name="+front, "--server-port=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	runAgent(t, p, "a", "127.0.0.1:"+agents)
	until(t, "the server is ready", func() bool { return answersOK("http://127.0.0.1:" + health + "/readyz") })
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the server waits for the agent")
	}
}
