package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// logBuffer is a buffer for a log that can be read concurrently.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// startTLSServer returns a server with mTLS on one of its ports, and its log.
func startTLSServer(t *testing.T, ca *authority, side string) (s *Server, address string, log *logBuffer) {
	t.Helper()
	log = &logBuffer{}
	s = New(Options{Strategies: []Strategy{Default}, Logger: slog.New(slog.NewTextHandler(log, nil))})
	l, err := listenTLS(t.Context(), side+"-port", "127.0.0.1:0", side, ca.files(), "h2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if side == "server" {
		go func() { _ = s.ServeFrontends(l, ModeGRPC) }()
	} else {
		go func() { _ = s.ServeAgents(l) }()
	}
	return s, l.Addr().String(), log
}

// TestHandshakeErrorsAreLogged checks that a client without a certificate, or with a certificate of another CA, is
// rejected. The log contains the address, the reason and the flag (KON-034).
func TestHandshakeErrorsAreLogged(t *testing.T) {
	ca := newAuthority(t)
	other := newAuthority(t).issue("other")
	for _, side := range []string{"cluster", "server"} {
		for reason, certificate := range map[string]*tls.Certificate{"didn't provide a certificate": nil,
			"signed by unknown authority": other} {
			_, address, log := startTLSServer(t, ca, side)
			_, _ = ca.connect(address, certificate)
			waitFor(t, "the log contains a warning about "+reason, func() bool { return log.String() != "" })
			for _, want := range []string{"level=WARN", reason, "--" + side + "-ca-cert", "from=127.0.0.1:"} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log does not contain %q: %s", want, log)
				}
			}
		}
	}
}

// TestHandshakeErrorLogRate checks that many failed handshakes cause at most one log line per second
// (KON-034).
func TestHandshakeErrorLogRate(t *testing.T) {
	const clients = 50
	ca := newAuthority(t)
	s, address, log := startTLSServer(t, ca, "cluster")
	began := time.Now()
	for range clients {
		_, _ = ca.connect(address, nil)
	}
	waitFor(t, "all clients are disconnected", func() bool {
		return log.String() != "" && s.unauthenticatedCount() == 0
	})
	lines, seconds := strings.Count(log.String(), "\n"), int(time.Since(began)/time.Second)
	if lines > seconds+1 {
		t.Errorf("%d log lines in %d seconds", lines, seconds)
	}
}

// TestRejectedAgentLogRate checks that many agents rejected without a review cause at most one log line per
// second. Such agents have no token, get no review slot, or disconnect. The rejection of a reviewed token is
// always logged (KON-034).
func TestRejectedAgentLogRate(t *testing.T) {
	const clients = 50
	log, finishReviews := &logBuffer{}, make(chan struct{})
	s, address := startServer(t, func(_ context.Context, token string) error {
		if token == "many.unknown.agents" {
			<-finishReviews
		}
		return errors.New("rejected")
	}, slog.NewTextHandler(log, nil))
	s.reviews.unknown.timeout = time.Second
	began := time.Now()
	for token, rejections := range map[string]int{"": clients, "Bearer many.unknown.agents": clients - maxReviews} {
		var all []*fakeAgent
		for i := range clients {
			all = append(all, connectAgentFrom(t, fmt.Sprint("127.0.1.", i), address, h2.Options{}, wire.AgentID,
				"unknown", wire.Authorization, token))
		}
		waitFor(t, "the agents are rejected", func() bool {
			responses := 0
			for _, k := range all {
				responses += len(k.answered)
			}
			return responses == rejections
		})
		for _, k := range all {
			k.conn.Close(nil)
		}
		waitFor(t, "all clients are disconnected", func() bool { return s.unauthenticatedCount() == 0 })
	}
	close(finishReviews)
	_ = connectAgent(t, address, "agent", "Bearer other.cluster.token").waitResponse(t)
	if !strings.Contains(log.String(), "agent=agent") {
		t.Errorf("the rejection after a review is not logged: %s", log)
	}
	lines, seconds := strings.Count(log.String(), "agent=unknown"), int(time.Since(began)/time.Second)
	if lines == 0 || lines > seconds+1 {
		t.Errorf("%d log lines in %d seconds", lines, seconds)
	}
}

// TestProbesAreNotLogged checks that a probe which connects and disconnects is not logged (KON-027).
func TestProbesAreNotLogged(t *testing.T) {
	s, address, log := startTLSServer(t, newAuthority(t), "cluster")
	probe := dialFrom(t, "127.0.0.1", address)
	waitFor(t, "the probe is accepted", func() bool { return s.unauthenticatedCount() == 1 })
	_ = probe.Close()
	waitFor(t, "the probe is disconnected", func() bool { return s.unauthenticatedCount() == 0 })
	if log.String() != "" {
		t.Errorf("unexpected log: %s", log)
	}
}
