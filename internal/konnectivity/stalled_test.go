package konnectivity_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/agent"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

// stallTime is how long one among packets may read nothing of keptOfPackets that wait.
const stallTime = 5 * time.Second

// KON-050: a reader that stalls holds up nobody, and what waits for it is bounded. With a stream for itself that is its windows, and it goes on
// where it was; among packets it is 4 MiB besides, and after 5 s it is closed and counted.
func TestStalledReader(t *testing.T) {
	for _, packets := range []bool{false, true} {
		t.Run(fmt.Sprintf("packets=%v", packets), func(t *testing.T) {
			p := newPKI(t)
			s, dial := narrowTunnel(t, p, packets)
			var sent atomic.Int64
			closed := make(chan struct{})
			source := serve(t, func(c net.Conn) {
				defer close(closed)
				_, _ = narrow(c, nil)
				for buf := make([]byte, pieceOnWay); ; {
					n, err := c.Write(buf)
					if sent.Add(int64(n)); err != nil {
						_ = c.Close()
						return
					}
				}
			})
			began := time.Now()
			stalled := open(t, dial, source)
			defer stalled.Close()
			for range 20 {
				beside(t, dial)
			}
			if packets {
				isClosed(t, s, closed, began, stalled)
			} else {
				goesOn(t, &sent, closed, stalled)
			}
			if n := sent.Load(); packets && (n < keptOfPackets || n > keptOfPackets+mostOnWay) {
				t.Errorf("%d KiB were taken; %d are kept, and windows beside", n>>10, keptOfPackets>>10)
			}
			beside(t, dial)
		})
	}
}

// narrowTunnel has little room but its own.
func narrowTunnel(t *testing.T, p *pki, packets bool) (*runs, dialer) {
	s, front, agents := runServer(t, p, server.ModeGRPC, "s")
	l := agentLink(t, p, func() string { return agents })
	l.packets = packets
	go l.serve()
	t.Cleanup(l.cut)
	until(t, "the server is there", func() bool { return answersOK("http://" + s.health + "/healthz") })
	a, err := agent.Connect(t.Context(), l.Addr().String(), agent.Options{ID: "a", TLS: p.agent, KeepaliveTime: time.Minute, Metrics: agent.NewMetrics(), Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		return narrow((&net.Dialer{}).DialContext(ctx, network, address))
	}})
	must(t, err)
	t.Cleanup(a.Close)
	t.Cleanup(s.leave)
	until(t, "the server has the agent", s.ready)
	return s, ourFront(t, p, transports[0], front)
}

// isClosed waits until a connection of which nothing is read is closed, and counted.
func isClosed(t *testing.T, s *runs, closed chan struct{}, began time.Time, stalled net.Conn) {
	select {
	case <-closed:
	case <-time.After(patience):
		t.Fatal("it is not closed")
	}
	if after := time.Since(began); after < stallTime {
		t.Errorf("it was closed after %v", after)
	}
	until(t, "it is counted", func() bool { return s.metric(t, "server_stalled_connections_total") == 1 })
	_ = stalled.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, stalled); err == nil || os.IsTimeout(err) {
		t.Errorf("it ends with %v", err)
	}
}

// goesOn waits until nothing more is taken, and then reads more than that was.
func goesOn(t *testing.T, sent *atomic.Int64, closed chan struct{}, stalled net.Conn) {
	last, since := int64(0), time.Now()
	until(t, "nothing more is taken", func() bool {
		if now := sent.Load(); now != last {
			last, since = now, time.Now()
		}
		return last > 0 && time.Since(since) > stallTime+time.Second
	})
	if last > mostOnWay {
		t.Errorf("%d KiB were taken, %d are the limit", last>>10, mostOnWay>>10)
	}
	_ = stalled.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.CopyN(io.Discard, stalled, 4*last); err != nil {
		t.Error(err)
	}
	select {
	case <-closed:
		t.Error("it was closed")
	default:
	}
}
