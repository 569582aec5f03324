package server

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// logged is a log that may be read meanwhile.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// guarded is a server with mTLS at one of its ports, and what it logs.
func guarded(t *testing.T, ours *authority, side string) (s *Server, address string, log *logged) {
	t.Helper()
	log = &logged{}
	s = New(Options{Strategies: []Strategy{Default}, Logger: slog.New(slog.NewTextHandler(log, nil))})
	l, err := listenTLS(t.Context(), side+"-port", "127.0.0.1:0", side, ours.files(), "h2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if side == "server" {
		go func() { _ = s.ServeFronts(l, ModeGRPC) }()
	} else {
		go func() { _ = s.ServeAgents(l) }()
	}
	return s, l.Addr().String(), log
}

// KON-034: who comes without a certificate, or with one of another CA, is refused, and the log says who it was, why, and by which flag.
func TestRefusedHandshakesAreLogged(t *testing.T) {
	ours := newAuthority(t)
	other := newAuthority(t).issue("other")
	for _, side := range []string{"cluster", "server"} {
		for why, with := range map[string]*tls.Certificate{"didn't provide a certificate": nil, "signed by unknown authority": other} {
			_, address, log := guarded(t, ours, side)
			_, _ = ours.call(address, with)
			eventually(t, "a warning of "+why, func() bool { return log.String() != "" })
			for _, want := range []string{"level=WARN", why, "--" + side + "-ca-cert", "from=127.0.0.1:"} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("no %q in %s", want, log)
				}
			}
		}
	}
}

// KON-034: strangers do not flood the log.
func TestRefusedHandshakesDoNotFloodTheLog(t *testing.T) {
	const strangers = 50
	ours := newAuthority(t)
	s, address, log := guarded(t, ours, "cluster")
	began := time.Now()
	for range strangers {
		_, _ = ours.call(address, nil)
	}
	eventually(t, "all have gone", func() bool { return log.String() != "" && s.knocking() == 0 })
	lines, seconds := strings.Count(log.String(), "\n"), int(time.Since(began)/time.Second)
	if lines > seconds+1 {
		t.Errorf("%d lines in %d seconds", lines, seconds)
	}
}

// KON-027: a probe that connects and goes is nothing to be told of.
func TestProbesAreNotLogged(t *testing.T) {
	s, address, log := guarded(t, newAuthority(t), "cluster")
	probe := dialFrom(t, "127.0.0.1", address)
	eventually(t, "it is accepted", func() bool { return s.knocking() == 1 })
	_ = probe.Close()
	eventually(t, "it has gone", func() bool { return s.knocking() == 0 })
	if log.String() != "" {
		t.Errorf("the log has %s", log)
	}
}
