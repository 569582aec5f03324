package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
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
	case k.answered <- wire.StatusError(fields):
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
	return knockFrom(t, "127.0.0.1", address, h2.Options{}, wire.AgentID, id, wire.Authorization, token)
}

// knockFrom comes from a host, with metadata.
func knockFrom(t *testing.T, host, address string, o h2.Options, metadata ...string) *knock {
	t.Helper()
	k := &knock{conn: h2.NewClient(dialFrom(t, host, address), o), answered: make(chan error, 1)}
	go func() { _ = k.conn.Run() }()
	t.Cleanup(func() { k.conn.Close(nil) })
	var err error
	if k.stream, err = k.conn.Open(func(*h2.Stream) h2.Receiver { return k }, wire.Request(wire.ConnectMethod, address, true, metadata...), false); err != nil {
		t.Fatal(err)
	}
	return k
}

// dialFrom connects from a host, one of 127.0.0.0/8.
func dialFrom(t *testing.T, host, address string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}).Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
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
	s.reviews.unknown.timeout = time.Hour
	first := knockAt(t, address, "known", "Bearer agent.token.first")
	if err := first.told(t); err != nil {
		t.Fatal(err)
	}
	first.conn.Close(nil)
	eventually(t, "the agent has gone", func() bool { return s.agents.len() == 0 })
	for i := range strangers {
		knockFrom(t, fmt.Sprint("127.0.1.", i%250), address, h2.Options{}, wire.AgentID, fmt.Sprint("stranger", i), wire.Authorization, "Bearer stranger.token.x")
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
	if err == nil || strings.Contains(err.Error(), "konnectivity-agent") || !strings.Contains(err.Error(), "see the log of the tunnel server") {
		t.Errorf("told %v", err)
	}
	if !strings.Contains(log.String(), `not of \"konnectivity-agent\"`) {
		t.Errorf("the log has no reason: %s", log.String())
	}
}

// KON-045, KON-053: after a restart of the server, which then knows nobody, strangers of one address have a part of the turns and not all:
// more of them are refused at once, and an agent of another address is let in. As soon as they are through others of theirs may come.
func TestStrangersOfOneAddress(t *testing.T) {
	through := make(chan struct{})
	reviewed := make(chan struct{}, 3*maxReviews)
	_, address := door(t, func(ctx context.Context, token string) error {
		if strings.HasPrefix(token, "agent.") {
			return nil
		}
		reviewed <- struct{}{}
		<-through
		return errors.New("nobody")
	}, slog.DiscardHandler)
	var all []*knock
	for i := range maxReviewsPerHost {
		all = append(all, knockAt(t, address, fmt.Sprint("stranger", i), "Bearer stranger.token.x"))
		<-reviewed
	}
	for i := range 2 * maxReviews { // wait for these
		all = append(all, knockAt(t, address, fmt.Sprint("more", i), "Bearer stranger.token.x"))
	}
	if err := knockFrom(t, "127.0.0.2", address, h2.Options{}, wire.AgentID, "agent", wire.Authorization, "Bearer agent.token.x").told(t); err != nil {
		t.Errorf("the agent is told %v", err)
	}
	if len(reviewed) > 0 {
		t.Error("one too many is reviewed")
	}
	close(through)
	for _, k := range all {
		_ = k.told(t)
	}
	eventually(t, "one more is let in", func() bool { return knockAt(t, address, "another", "Bearer agent.token.x").told(t) == nil })
}

// KON-045: who gets no turn in time is refused, and turns are given back.
func TestTurnsEnd(t *testing.T) {
	turns := newReviewQueue()
	turns.unknown.slots = make(chan struct{}, 1)
	late, cancel := context.WithCancel(t.Context())
	cancel()
	err := turns.review(t.Context(), "early", "here", func(context.Context) error {
		return turns.review(late, "late", "here", func(context.Context) error { return nil })
	})
	if err == nil || !strings.Contains(err.Error(), "too many reviews") {
		t.Errorf("one too many: %v", err)
	}
	if err := turns.review(t.Context(), "late", "here", func(context.Context) error { return nil }); err != nil {
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

// KON-045: an ID that no host and no UUID has is refused before anything is said of it in the log.
func TestIDsOfStrangers(t *testing.T) {
	var log strings.Builder
	s, address := door(t, nil, slog.NewTextHandler(&log, nil))
	for _, id := range []string{"", strings.Repeat("x", 254), strings.Repeat("x", 10_000), "a\xff", "naïve"} {
		if err := knockAt(t, address, id, "").told(t); err == nil || !strings.Contains(err.Error(), "status 2: ") || !strings.Contains(err.Error(), wire.AgentID) {
			t.Errorf("%.10q, %d bytes: told %v", id, len(id), err)
		}
	}
	if log.Len() > 0 || s.agents.len() > 0 {
		t.Errorf("%d agents, and the log has %.100q", s.agents.len(), log.String())
	}
	for _, id := range []string{"a", "8b7e1a4e-0c4f-4c9b-9d8e-6a3b5a0f7c11", "node 1.example", strings.Repeat("x", 253)} {
		if err := knockAt(t, address, id, "").told(t); err != nil {
			t.Errorf("%.10q, %d bytes: told %v", id, len(id), err)
		}
	}
}

// knocking is how many connections there are by which nobody has been let in.
func (s *Server) knocking() int {
	s.unauthenticated.mu.Lock()
	defer s.unauthenticated.mu.Unlock()
	return s.unauthenticated.conns.Len()
}

// KON-053: connections that say nothing are some part of the files that the server may open, and no more: the oldest is closed for another.
// Who has been let in is none of them.
func TestSilentStrangers(t *testing.T) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	s, address := door(t, nil, slog.DiscardHandler)
	if most := uint64(s.unauthenticated.limit); most != files.Cur/4 && files.Cur < math.MaxInt32 {
		t.Errorf("%d silent connections, of %d files", most, files.Cur)
	}
	s.unauthenticated.mu.Lock()
	s.unauthenticated.limit = 3
	s.unauthenticated.mu.Unlock()
	agent := knockAt(t, address, "agent", "")
	if err := agent.told(t); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent is no stranger", func() bool { return s.knocking() == 0 })
	var silent []net.Conn
	for i := range 10 {
		silent = append(silent, dialFrom(t, "127.0.0.1", address))
		eventually(t, "it is accepted", func() bool { return s.knocking() == min(i+1, 3) })
		if oldest := i - 3; oldest >= 0 {
			closed(t, silent[oldest])
		}
	}
	eventually(t, "3 connections and the agent's are left", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == 4
	})
	if err := agent.conn.Err(); err != nil {
		t.Errorf("the agent's is closed: %v", err)
	}
}

// closed waits until the other side has closed a connection.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("it is open after %v", patience)
	}
}
