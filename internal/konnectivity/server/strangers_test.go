package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// knock is somebody who comes as an agent. answered has what they were told: nil if they have been let in.
type knock struct {
	conn     *h2.Conn
	stream   *h2.Stream
	answered chan error
}

func (k *knock) Header(_ *h2.Stream, fields []hpack.HeaderField, _ bool) {
	select {
	case k.answered <- wire.Status(fields):
	default: // is told already
	}
}
func (k *knock) Data(_ *h2.Stream, b *h2.Buffer, _ bool) {
	if b != nil {
		b.Release()
	}
}
func (k *knock) Ended(*h2.Stream, error) {}

// knockAt comes with a token.
func knockAt(t *testing.T, address, id, token string) *knock {
	t.Helper()
	tcp, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	k := &knock{conn: h2.NewClient(tcp, h2.Options{}), answered: make(chan error, 1)}
	go func() { _ = k.conn.Run() }()
	t.Cleanup(func() { k.conn.Close(nil) })
	header := wire.Request(wire.Connect, address, true, wire.AgentID, id, wire.Authorization, token)
	if k.stream, err = k.conn.Open(func(*h2.Stream) h2.Receiver { return k }, header, false); err != nil {
		t.Fatal(err)
	}
	return k
}

// told is what they were told.
func (k *knock) told(t *testing.T) error {
	t.Helper()
	select {
	case err := <-k.answered:
		return err
	case <-time.After(patience):
		t.Fatalf("no answer within %v", patience)
		return nil
	}
}

// door is a server whose port for agents is open, without TLS.
func door(t *testing.T, authenticate func(context.Context, string) error, log slog.Handler) (s *Server, address string) {
	t.Helper()
	s = New(Options{ID: "s", Count: 1, Strategies: []Strategy{Default}, KeepaliveTime: time.Hour, Logger: slog.New(log), Authenticate: authenticate})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.ServeAgents(l) }()
	t.Cleanup(func() {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		s.Shutdown(over)
	})
	return s, l.Addr().String()
}

// KON-045, KON-053: an agent that was there before comes back, with a new token, while the tokens of a thousand strangers are reviewed or
// wait for it; of these so many are reviewed at a time and no more.
func TestStrangersDoNotKeepAgentsOut(t *testing.T) {
	const strangers = 1000
	var reviewed atomic.Int64
	s, address := door(t, func(ctx context.Context, token string) error {
		if strings.HasPrefix(token, "agent.") {
			return nil
		}
		reviewed.Add(1)
		<-ctx.Done()
		return errors.New("nobody")
	}, slog.DiscardHandler)
	s.turns.strange.patience = time.Hour
	first := knockAt(t, address, "known", "Bearer agent.token.first")
	if err := first.told(t); err != nil {
		t.Fatal(err)
	}
	first.conn.Close(nil)
	eventually(t, "the agent has gone", func() bool { return s.agents.len() == 0 })
	for i := range strangers {
		knockAt(t, address, fmt.Sprint("stranger", i), "Bearer stranger.token.x")
	}
	eventually(t, "strangers have all turns", func() bool { return reviewed.Load() >= maxReviews })
	if err := knockAt(t, address, "known", "Bearer agent.token.second").told(t); err != nil {
		t.Errorf("told %v", err)
	}
	if n := reviewed.Load(); n != maxReviews {
		t.Errorf("%d strangers are reviewed at a time", n)
	}
}

// KON-045: who is no agent learns nothing of who is, which the log says; and what cannot be a token of a ServiceAccount is not reviewed.
func TestWhatStrangersAreTold(t *testing.T) {
	var log strings.Builder
	asked := false
	_, address := door(t, func(context.Context, string) error {
		asked = true
		return errors.New(`the token is of ServiceAccount "other", and not of "konnectivity-agent"`)
	}, slog.NewTextHandler(&log, nil))
	for _, token := range []string{"", "Bearer ", "Bearer a.b", "Bearer a.b.c.d", "Bearer a.b.c d", "Basic a.b.c", "a.b.c"} {
		if err := knockAt(t, address, "x", token).told(t); err == nil || asked || !strings.Contains(err.Error(), "--service-account-token-path") {
			t.Errorf("%q: told %v, reviewed: %t", token, err, asked)
		}
	}
	err := knockAt(t, address, "x", "Bearer a.b.c").told(t)
	if err == nil || strings.Contains(err.Error(), "konnectivity-agent") || !strings.Contains(err.Error(), "the log of the tunnel server says why") {
		t.Errorf("told %v", err)
	}
	if !strings.Contains(log.String(), `not of \"konnectivity-agent\"`) {
		t.Errorf("the log has no reason: %s", log.String())
	}
}

// KON-045: who gets no turn in time is refused, and turns are given back.
func TestTurnsEnd(t *testing.T) {
	turns := newTurns()
	turns.strange.free = make(chan struct{}, 1)
	late, cancel := context.WithCancel(t.Context())
	cancel()
	err := turns.review(t.Context(), "early", func(context.Context) error {
		return turns.review(late, "late", func(context.Context) error { return nil })
	})
	if err == nil || !strings.Contains(err.Error(), "too many others") {
		t.Errorf("one too many: %v", err)
	}
	if err := turns.review(t.Context(), "late", func(context.Context) error { return nil }); err != nil {
		t.Errorf("after the others: %v", err)
	}
}

// KON-045: who sends packets before they have been let in is broken off, and their token is reviewed no longer.
func TestPacketsOfStrangers(t *testing.T) {
	reviewed, over := make(chan struct{}), make(chan error, 1)
	_, address := door(t, func(ctx context.Context, _ string) error {
		close(reviewed)
		<-ctx.Done()
		over <- context.Cause(ctx)
		return ctx.Err()
	}, slog.DiscardHandler)
	k := knockAt(t, address, "a", "Bearer a.b.c")
	<-reviewed
	k.stream.Send(wire.Packet{Type: wire.Drain}.Message())
	select {
	case err := <-over:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the review ended as %v", err)
		}
	case <-time.After(patience):
		t.Errorf("the review goes on after %v", patience)
	}
}
