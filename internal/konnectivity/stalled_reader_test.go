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

// stallTimeout is the time after which a stalled connection of a shared stream is closed.
const stallTimeout = 5 * time.Second

// TestStalledReader checks that a stalled reader blocks no other connection, and that its buffered data is
// limited. If the connection has its own stream, it continues when the reader continues. On a shared stream, 4 MiB
// more are buffered, and the connection is closed and counted after 5 s (KON-050).
func TestStalledReader(t *testing.T) {
	for _, packets := range []bool{false, true} {
		t.Run(fmt.Sprintf("packets=%v", packets), func(t *testing.T) {
			p := newPKI(t)
			s, dial := smallBufferTunnel(t, p, packets)
			var sent atomic.Int64
			closed := make(chan struct{})
			source := serve(t, func(c net.Conn) {
				defer close(closed)
				_, _ = shrinkBuffers(c, nil)
				for buf := make([]byte, pieceBytes); ; {
					n, err := c.Write(buf)
					if sent.Add(int64(n)); err != nil {
						_ = c.Close()
						return
					}
				}
			})
			began := time.Now()
			stalled := mustDial(t, dial, source)
			defer stalled.Close()
			for range 20 {
				checkNewConn(t, dial)
			}
			if packets {
				checkStalledClosed(t, s, closed, began, stalled)
			} else {
				checkStalledContinues(t, &sent, closed, stalled)
			}
			if n := sent.Load(); packets && (n < maxBuffered || n > maxBuffered+maxInFlight) {
				t.Errorf("%d KiB were accepted, want %d KiB to %d KiB", n>>10, maxBuffered>>10,
					(maxBuffered+maxInFlight)>>10)
			}
			checkNewConn(t, dial)
		})
	}
}

// smallBufferTunnel returns a tunnel with small socket buffers.
func smallBufferTunnel(t *testing.T, p *pki, packets bool) (*program, dialer) {
	s, frontend, agents := runServer(t, p, server.ModeGRPC, "s")
	l := newAgentLink(t, p, func() string { return agents })
	l.packets = packets
	go l.serve()
	t.Cleanup(l.cut)
	waitFor(t, "the server is running", func() bool { return answersOK("http://" + s.health + "/healthz") })
	dialSmall := func(ctx context.Context, network, address string) (net.Conn, error) {
		return shrinkBuffers((&net.Dialer{}).DialContext(ctx, network, address))
	}
	a, err := agent.Connect(t.Context(), l.Addr().String(), agent.Options{ID: "a", TLS: p.agent,
		KeepaliveTime: time.Minute, Metrics: agent.NewMetrics(), Dial: dialSmall})
	must(t, err)
	t.Cleanup(a.Close)
	t.Cleanup(s.stop)
	waitFor(t, "the server has the agent", s.ready)
	return s, trellisClient(t, p, transports[0], frontend)
}

// checkStalledClosed waits until the stalled connection is closed and counted.
func checkStalledClosed(t *testing.T, s *program, closed chan struct{}, began time.Time, stalled net.Conn) {
	select {
	case <-closed:
	case <-time.After(testTimeout):
		t.Fatal("the stalled connection is not closed")
	}
	if after := time.Since(began); after < stallTimeout {
		t.Errorf("the connection was closed after %v, want at least %v", after, stallTimeout)
	}
	waitFor(t, "the stalled connection is counted",
		func() bool { return s.metric(t, "server_stalled_connections_total") == 1 })
	_ = stalled.SetReadDeadline(time.Now().Add(testTimeout))
	if _, err := io.Copy(io.Discard, stalled); err == nil || os.IsTimeout(err) {
		t.Errorf("the connection ends with %v, want an error", err)
	}
}

// checkStalledContinues waits until the connection accepts no more data. It then reads more bytes than the
// connection had accepted.
func checkStalledContinues(t *testing.T, sent *atomic.Int64, closed chan struct{}, stalled net.Conn) {
	last, since := int64(0), time.Now()
	waitFor(t, "no more data is accepted", func() bool {
		if now := sent.Load(); now != last {
			last, since = now, time.Now()
		}
		return last > 0 && time.Since(since) > stallTimeout+time.Second
	})
	if last > maxInFlight {
		t.Errorf("%d KiB were accepted, limit %d KiB", last>>10, maxInFlight>>10)
	}
	_ = stalled.SetReadDeadline(time.Now().Add(testTimeout))
	if _, err := io.CopyN(io.Discard, stalled, 4*last); err != nil {
		t.Error(err)
	}
	select {
	case <-closed:
		t.Error("the connection was closed")
	default:
	}
}
