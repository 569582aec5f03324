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
		go func() { _ = s.ServeFrontends(l, ModeGRPC) }()
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

// KON-034: nor do those that come without a token, or with one that is not reviewed, as it does not get its turn or they do not wait. Of
// one that was reviewed the log says why it is refused, whatever others do.
func TestRefusedAgentsDoNotFloodTheLog(t *testing.T) {
	const strangers = 50
	log, through := &logged{}, make(chan struct{})
	s, address := door(t, func(_ context.Context, token string) error {
		if token == "of.many.strangers" {
			<-through
		}
		return errors.New("nobody")
	}, slog.NewTextHandler(log, nil))
	s.reviews.unknown.timeout = time.Second
	began := time.Now()
	for token, refused := range map[string]int{"": strangers, "Bearer of.many.strangers": strangers - maxReviews} {
		var all []*knock
		for i := range strangers {
			all = append(all, knockFrom(t, fmt.Sprint("127.0.1.", i), address, h2.Options{}, wire.AgentID, "stranger", wire.Authorization, token))
		}
		eventually(t, "they are refused", func() bool {
			told := 0
			for _, k := range all {
				told += len(k.answered)
			}
			return told == refused
		})
		for _, k := range all {
			k.conn.Close(nil)
		}
		eventually(t, "all have gone", func() bool { return s.knocking() == 0 })
	}
	close(through)
	_ = knockAt(t, address, "agent", "Bearer of.another.cluster").told(t)
	if !strings.Contains(log.String(), "agent=agent") {
		t.Errorf("nothing is said of who was reviewed: %s", log)
	}
	lines, seconds := strings.Count(log.String(), "agent=stranger"), int(time.Since(began)/time.Second)
	if lines == 0 || lines > seconds+1 {
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
