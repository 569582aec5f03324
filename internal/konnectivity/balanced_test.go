package konnectivity_test

import (
	"context"
	"net"
	"testing"

	"github.com/trellis-k8s/trellis/internal/konnectivity/client"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

// KON-054, KON-055: behind a load balancer that goes by /readyz, an API server whose tunnel server loses its agents dials by another.
func TestServerLosesItsAgents(t *testing.T) {
	p, tr := newPKI(t), transport{server.ModeGRPC, true}
	first, second := ourServer(t, p, tr), ourServer(t, p, tr)
	only := ourAgent(t, p, first.agents)
	ourAgent(t, p, second.agents)
	until(t, "both are ready", func() bool { return first.ready() && second.ready() })
	c := client.New(func(ctx context.Context) (net.Conn, error) {
		if first.ready() {
			return tr.connect(p, first.front)(ctx)
		}
		return tr.connect(p, second.front)(ctx)
	})
	t.Cleanup(c.Close)
	dial := func(ctx context.Context, address string) (net.Conn, error) { return c.DialContext(ctx, "tcp", address) }
	echo := serve(t, sendsBack)
	echoes(t, open(t, dial, echo))
	only.Close()
	until(t, "the first is not", func() bool { return !first.ready() })
	echoes(t, open(t, dial, echo))
}
