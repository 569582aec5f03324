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

// fakeAgent is a client that connects as an agent. It sends the status of its stream to answered. A nil status
// means that the agent is admitted.
type fakeAgent struct {
	conn     *h2.Conn
	stream   *h2.Stream
	answered chan error
}

func (k *fakeAgent) Header(_ *h2.Stream, fields []hpack.HeaderField, _ bool) {
	select {
	case k.answered <- wire.StatusError(fields):
	default: // only the first header is used
	}
}
func (k *fakeAgent) Data(_ *h2.Stream, b *h2.Buffer, _ bool) {
	if b != nil {
		b.Release()
	}
}
func (k *fakeAgent) Ended(*h2.Stream, error) {}

// connectAgent connects an agent with a token.
func connectAgent(t *testing.T, address, id, token string) *fakeAgent {
	t.Helper()
	return connectAgentFrom(t, "127.0.0.1", address, h2.Options{}, wire.AgentID, id, wire.Authorization, token)
}

// connectAgentFrom connects an agent with metadata from a local address.
func connectAgentFrom(t *testing.T, host, address string, o h2.Options, metadata ...string) *fakeAgent {
	t.Helper()
	k := &fakeAgent{conn: h2.NewClient(dialFrom(t, host, address), o), answered: make(chan error, 1)}
	go func() { _ = k.conn.Run() }()
	t.Cleanup(func() { k.conn.Close(nil) })
	var err error
	if k.stream, err = k.conn.Open(func(*h2.Stream) h2.Receiver { return k },
		wire.Request(wire.ConnectMethod, address, true, metadata...), false); err != nil {
		t.Fatal(err)
	}
	return k
}

// dialFrom connects from a local address in 127.0.0.0/8.
func dialFrom(t *testing.T, host, address string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}).Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// waitResponse returns the status of the agent's stream.
func (k *fakeAgent) waitResponse(t *testing.T) error {
	t.Helper()
	select {
	case err := <-k.answered:
		return err
	case <-time.After(testTimeout):
		t.Fatalf("no response within %v", testTimeout)
		return nil
	}
}

// startServer returns a server that accepts agents without TLS.
func startServer(t *testing.T, authenticate func(context.Context, string) error, log slog.Handler) (
	s *Server, address string,
) {
	t.Helper()
	s = New(Options{ID: "s", Count: 1, Strategies: []Strategy{Default}, KeepaliveTime: time.Hour, Logger: slog.New(log),
		Authenticate: authenticate})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.ServeAgents(l) }()
	t.Cleanup(func() {
		canceled, cancel := context.WithCancel(context.Background())
		cancel()
		s.Shutdown(canceled)
	})
	return s, l.Addr().String()
}

// TestReviewSlotsOfKnownAgents checks that an agent that was admitted before can reconnect with a new token
// while the tokens of a thousand unknown clients wait for review. The number of concurrent reviews of unknown
// clients is limited (KON-045, KON-053).
func TestReviewSlotsOfKnownAgents(t *testing.T) {
	const unknownClients = 1000
	var reviewed atomic.Int64
	s, address := startServer(t, func(ctx context.Context, token string) error {
		if strings.HasPrefix(token, "agent.") {
			return nil
		}
		reviewed.Add(1)
		<-ctx.Done()
		return errors.New("rejected")
	}, slog.DiscardHandler)
	s.reviews.unknown.timeout = time.Hour
	first := connectAgent(t, address, "known", "Bearer agent.token.first")
	if err := first.waitResponse(t); err != nil {
		t.Fatal(err)
	}
	first.conn.Close(nil)
	waitFor(t, "the agent has disconnected", func() bool { return s.agents.len() == 0 })
	for i := range unknownClients {
		connectAgentFrom(t, fmt.Sprint("127.0.1.", i%250), address, h2.Options{}, wire.AgentID,
			fmt.Sprint("unknown", i), wire.Authorization, "Bearer unknown.token.x")
	}
	waitFor(t, "unknown clients use all review slots", func() bool { return reviewed.Load() >= maxReviews })
	if err := connectAgent(t, address, "known", "Bearer agent.token.second").waitResponse(t); err != nil {
		t.Errorf("got error %v", err)
	}
	if n := reviewed.Load(); n != maxReviews {
		t.Errorf("%d concurrent reviews of unknown clients, want %d", n, maxReviews)
	}
}

// TestRejectionMessages checks that a rejected client does not learn the expected account, which only the log
// contains. Values that cannot be ServiceAccount tokens are not reviewed (KON-045).
func TestRejectionMessages(t *testing.T) {
	var log strings.Builder
	reviewed := false
	_, address := startServer(t, func(context.Context, string) error {
		reviewed = true
		return errors.New(`the token belongs to ServiceAccount "other", not to "konnectivity-agent"`)
	}, slog.NewTextHandler(&log, nil))
	for _, token := range []string{"", "Bearer ", "Bearer a.b", "Bearer a.b.c.d", "Bearer a.b.c d", "Basic a.b.c",
		"a.b.c"} {
		if err := connectAgent(t, address, "x", token).waitResponse(t); err == nil || reviewed ||
			!strings.Contains(err.Error(), "--service-account-token-path") {
			t.Errorf("%q: got error %v, reviewed %t", token, err, reviewed)
		}
	}
	err := connectAgent(t, address, "x", "Bearer a.b.c").waitResponse(t)
	if err == nil || strings.Contains(err.Error(), "konnectivity-agent") ||
		!strings.Contains(err.Error(), "see the log of the tunnel server") {
		t.Errorf("got error %v", err)
	}
	if !strings.Contains(log.String(), `not to \"konnectivity-agent\"`) {
		t.Errorf("the log does not contain the reason: %s", log.String())
	}
}

// TestReviewsPerHost checks that unknown clients of one address use only a part of the review slots. Others of
// that address wait or are rejected, and an agent of another address is admitted. After the reviews, the slots
// are free again. This matters after a restart, when no agent is known (KON-045, KON-053).
func TestReviewsPerHost(t *testing.T) {
	finishReviews := make(chan struct{})
	reviewed := make(chan struct{}, 3*maxReviews)
	_, address := startServer(t, func(ctx context.Context, token string) error {
		if strings.HasPrefix(token, "agent.") {
			return nil
		}
		reviewed <- struct{}{}
		<-finishReviews
		return errors.New("rejected")
	}, slog.DiscardHandler)
	var all []*fakeAgent
	for i := range maxReviewsPerHost {
		all = append(all, connectAgent(t, address, fmt.Sprint("unknown", i), "Bearer unknown.token.x"))
		<-reviewed
	}
	for i := range 2 * maxReviews { // these agents wait for a slot or are rejected
		all = append(all, connectAgent(t, address, fmt.Sprint("more", i), "Bearer unknown.token.x"))
	}
	if err := connectAgentFrom(t, "127.0.0.2", address, h2.Options{}, wire.AgentID, "agent", wire.Authorization,
		"Bearer agent.token.x").waitResponse(t); err != nil {
		t.Errorf("the agent of another address is rejected: %v", err)
	}
	if len(reviewed) > 0 {
		t.Error("more than maxReviewsPerHost tokens are reviewed")
	}
	close(finishReviews)
	for _, k := range all {
		_ = k.waitResponse(t)
	}
	waitFor(t, "another agent is admitted",
		func() bool { return connectAgent(t, address, "another", "Bearer agent.token.x").waitResponse(t) == nil })
}

// TestReviewQueueTimeout checks that a client which gets no review slot in time is rejected, and that slots
// are released (KON-045).
func TestReviewQueueTimeout(t *testing.T) {
	queue := newReviewQueue()
	queue.unknown.slots = make(chan struct{}, 1)
	late, cancel := context.WithCancel(t.Context())
	cancel()
	err := queue.review(t.Context(), "early", "here", func(context.Context) error {
		return queue.review(late, "late", "here", func(context.Context) error { return nil })
	})
	if err == nil || !strings.Contains(err.Error(), "too many reviews") {
		t.Errorf("no free slot: got error %v", err)
	}
	if err := queue.review(t.Context(), "late", "here", func(context.Context) error { return nil }); err != nil {
		t.Errorf("with a free slot: got error %v", err)
	}
}

// TestPacketsBeforeAdmission checks that a client which sends packets before its admission is disconnected,
// and that the review of its token is cancelled (KON-045).
func TestPacketsBeforeAdmission(t *testing.T) {
	reviewed, ended := make(chan struct{}), make(chan error, 1)
	_, address := startServer(t, func(ctx context.Context, _ string) error {
		close(reviewed)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return ctx.Err()
	}, slog.DiscardHandler)
	k := connectAgent(t, address, "a", "Bearer a.b.c")
	<-reviewed
	k.stream.Send(wire.Packet{Type: wire.Drain}.Message())
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the review ended with %v, want %v", err, context.Canceled)
		}
	case <-time.After(testTimeout):
		t.Errorf("the review is not cancelled within %v", testTimeout)
	}
}

// TestInvalidAgentIDs checks that an agent ID which is too long or not printable ASCII is rejected and not
// logged (KON-045).
func TestInvalidAgentIDs(t *testing.T) {
	var log strings.Builder
	s, address := startServer(t, nil, slog.NewTextHandler(&log, nil))
	for _, id := range []string{"", strings.Repeat("x", 254), strings.Repeat("x", 10_000), "a\xff", "naïve"} {
		if err := connectAgent(t, address, id, "").waitResponse(t); err == nil ||
			!strings.Contains(err.Error(), "status 2: ") || !strings.Contains(err.Error(), wire.AgentID) {
			t.Errorf("%.10q, %d bytes: got error %v", id, len(id), err)
		}
	}
	if log.Len() > 0 || s.agents.len() > 0 {
		t.Errorf("%d agents, log %.100q; want none", s.agents.len(), log.String())
	}
	for _, id := range []string{"a", "8b7e1a4e-0c4f-4c9b-9d8e-6a3b5a0f7c11", "node 1.example",
		strings.Repeat("x", 253)} {
		if err := connectAgent(t, address, id, "").waitResponse(t); err != nil {
			t.Errorf("%.10q, %d bytes: got error %v", id, len(id), err)
		}
	}
}

// unauthenticatedCount returns the number of connections without an admitted agent.
func (s *Server) unauthenticatedCount() int {
	s.unauthenticated.mu.Lock()
	defer s.unauthenticated.mu.Unlock()
	return s.unauthenticated.conns.Len()
}

// TestSilentConnections checks that connections without an agent may use only a quarter of the open files.
// Above this limit, the oldest one is closed. Connections of admitted agents do not count (KON-053).
func TestSilentConnections(t *testing.T) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	s, address := startServer(t, nil, slog.DiscardHandler)
	if limit := uint64(s.unauthenticated.limit); limit != files.Cur/4 && files.Cur < math.MaxInt32 {
		t.Errorf("limit of %d unauthenticated connections with %d files, want a quarter", limit, files.Cur)
	}
	s.unauthenticated.mu.Lock()
	s.unauthenticated.limit = 3
	s.unauthenticated.mu.Unlock()
	agent := connectAgent(t, address, "agent", "")
	if err := agent.waitResponse(t); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the agent no longer counts as unauthenticated", func() bool { return s.unauthenticatedCount() == 0 })
	var silent []net.Conn
	for i := range 10 {
		silent = append(silent, dialFrom(t, "127.0.0.1", address))
		waitFor(t, "the connection is accepted", func() bool { return s.unauthenticatedCount() == min(i+1, 3) })
		if oldest := i - 3; oldest >= 0 {
			checkClosed(t, silent[oldest])
		}
	}
	waitFor(t, "the server has 3 silent connections and the agent's", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == 4
	})
	if err := agent.conn.Err(); err != nil {
		t.Errorf("the agent's connection is closed: %v", err)
	}
}

// checkClosed waits until the peer has closed a connection.
func checkClosed(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(testTimeout))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is still open after %v", testTimeout)
	}
}
