package konnectivity_test

import (
	"context"
	"net"
	"testing"

	"github.com/trellis-k8s/trellis/internal/konnectivity/client"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

// TestServerWithoutAgents checks a client behind a load balancer that checks /readyz. The client reconnects when
// its tunnel server has lost its agents (KON-054, KON-055).
func TestServerWithoutAgents(t *testing.T) {
	p, tr := newPKI(t), transport{server.ModeGRPC, true}
	first, second := startTrellisServer(t, p, tr), startTrellisServer(t, p, tr)
	agent := connectTrellisAgent(t, p, first.agents)
	connectTrellisAgent(t, p, second.agents)
	waitFor(t, "both servers are ready", func() bool { return first.ready() && second.ready() })
	c := client.New(func(ctx context.Context) (net.Conn, error) {
		if first.ready() {
			return tr.connect(p, first.frontend)(ctx)
		}
		return tr.connect(p, second.frontend)(ctx)
	})
	t.Cleanup(c.Close)
	dial := func(ctx context.Context, address string) (net.Conn, error) { return c.DialContext(ctx, "tcp", address) }
	echo := serve(t, echoConn)
	checkEcho(t, mustDial(t, dial, echo))
	agent.Close()
	waitFor(t, "the first server is not ready", func() bool { return !first.ready() })
	checkEcho(t, mustDial(t, dial, echo))
}
