package conversion

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trellis-k8s/trellis/internal/egress"
)

// site is a host in a bubble that takes TLS connections and answers nothing.
type site struct {
	name string
	ca   []byte

	mu          sync.Mutex
	certificate tls.Certificate
	alive, mute bool
	dialed      int
	asked       int // bytes of requests
}

func newSite(t *testing.T, name string) *site {
	s := &site{name: name}
	s.certificate, s.ca = certificateFor(t, name)
	return s
}

func (s *site) config() string {
	return fmt.Sprintf(`{"conversionReviewVersions":["v1"],"clientConfig":{"url":"https://%s/convert","caBundle":%q}}`, s.name, base64.StdEncoding.EncodeToString(s.ca))
}

func (s *site) set(alive bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alive = alive
}

// counts returns how often the host was dialed and what was asked since the last call.
func (s *site) counts() (dialed, asked int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dialed, asked, s.dialed, s.asked = s.dialed, s.asked, 0, 0
	return dialed, asked
}

func (s *site) dial() (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dialed++
	if !s.alive {
		return nil, errors.New("connection refused")
	}
	client, server := net.Pipe()
	config := &tls.Config{Certificates: []tls.Certificate{s.certificate}}
	go func() {
		defer server.Close()
		c := tls.Server(server, config)
		if c.Handshake() != nil {
			return
		}
		n, _ := c.Read(make([]byte, 1024)) // then it hangs up
		s.mu.Lock()
		s.asked += n
		mute := s.mute
		s.mu.Unlock()
		for mute { // until the other side hangs up
			_, err := c.Read(make([]byte, 1024))
			mute = err == nil
		}
	}()
	return client, nil
}

// callSites returns Webhooks that reach some hosts.
func callSites(said *reports, names func(string) string, sites ...*site) *Webhooks {
	return NewWebhooks(WebhookConfig{Report: said.report, WebhookOf: names, Egress: &egress.Dialer{ControlPlane: func(_ context.Context, _, address string) (net.Conn, error) {
		for _, s := range sites {
			if address == s.name+":443" {
				return s.dial()
			}
		}
		return nil, io.ErrUnexpectedEOF
	}}})
}

// fails makes calls until they fail at once.
func fails(t *testing.T, w *Webhooks, s *site) {
	t.Helper()
	for range 2 * tripAfter {
		if convertOne(w, s.config()) == nil {
			t.Fatal("it answers")
		}
	}
}

// take returns what was reported since the last call, in short.
func (r *reports) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	said := r.said
	r.said = nil
	return strings.Join(said, "; ")
}

// CNV-059: a webhook that could not be reached is known to be back within two seconds without a call, and is asked nothing for that.
func TestWebhookIsLookedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said reports
		s := newSite(t, "hook.example.com")
		w := callSites(&said, func(string) string { return s.config() }, s)
		defer w.Close()
		fails(t, w, s)
		if got := said.take(); strings.Count(got, "connection refused") != 1 {
			t.Fatalf("reported %q", got)
		}
		s.counts()
		<-time.After(time.Minute)
		if dialed, _ := s.counts(); dialed < 59 || dialed > 60 {
			t.Errorf("looked for %d times in a minute", dialed)
		}
		s.set(true)
		<-time.After(2 * time.Second)
		if got := said.take(); got != "crontabs.example.com: <nil>" {
			t.Errorf("two seconds after it is back, reported %q", got)
		}
		s.counts()
		<-time.After(time.Minute)
		if dialed, asked := s.counts(); dialed != 0 || asked != 0 {
			t.Errorf("looked for %d times though it is there, and asked %d bytes", dialed, asked)
		}
	})
}

// Being looked for does not make a webhook well that takes connections and does not answer calls: the condition would
// change every other second. One that refused them meanwhile is another.
func TestConnectionIsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said reports
		s := newSite(t, "hook.example.com")
		w := callSites(&said, nil, s)
		defer w.Close()
		s.set(true)
		fails(t, w, s)
		if got := said.take(); strings.Count(got, "crontabs") != 1 {
			t.Fatalf("reported %q", got)
		}
		<-time.After(time.Minute)
		if got := said.take(); got != "" {
			t.Errorf("reported %q", got)
		}
		s.set(false)
		<-time.After(3 * time.Second)
		s.set(true)
		<-time.After(2 * time.Second)
		if got := said.take(); got != "crontabs.example.com: <nil>" {
			t.Errorf("reported %q of one that has been started again", got)
		}
	})
}

// A webhook that could not be reached before this process, and takes connections, is taken to be back; the first call that it leaves
// without an answer until its deadline shows that it is not. Once it has answered, one failure is no news again.
func TestMuteWebhookAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said reports
		s := newSite(t, "hook.example.com")
		s.alive, s.mute = true, true
		w := callSites(&said, func(string) string { return s.config() }, s)
		defer w.Close()
		w.HalfOpen("crontabs.example.com")
		<-time.After(2 * time.Second)
		if got := said.take(); got != "crontabs.example.com: <nil>" {
			t.Fatalf("reported %q of one that takes connections", got)
		}
		if convertOne(w, s.config()) == nil {
			t.Fatal("it answers")
		}
		if got := said.take(); strings.Count(got, "crontabs") != 1 || strings.Contains(got, "<nil>") {
			t.Errorf("after the first call, reported %q", got)
		}
		<-time.After(time.Minute)
		if got := said.take(); got != "" {
			t.Errorf("of one that takes connections all the time, reported %q", got)
		}
	})
}

// A certificate that is not right is as good as no webhook.
func TestWrongCertificateIsNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said reports
		s := newSite(t, "hook.example.com")
		good := s.certificate
		s.certificate, _ = certificateFor(t, s.name)
		w := callSites(&said, nil, s)
		defer w.Close()
		s.set(true)
		fails(t, w, s)
		<-time.After(time.Minute)
		if got := said.take(); strings.Count(got, "crontabs") != 1 || !strings.Contains(got, "x509") {
			t.Fatalf("reported %q", got)
		}
		s.mu.Lock()
		s.certificate = good
		s.mu.Unlock()
		<-time.After(2 * time.Second)
		if got := said.take(); got != "crontabs.example.com: <nil>" {
			t.Errorf("reported %q", got)
		}
	})
}

// CNV-073: a CRD that names no webhook any longer is told so, and nobody is looked for; one that names another hears of that.
func TestWebhookIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said reports
		var mu sync.Mutex
		first, second := newSite(t, "first.example.com"), newSite(t, "second.example.com")
		named := first.config()
		w := callSites(&said, func(string) string {
			mu.Lock()
			defer mu.Unlock()
			return named
		}, first, second)
		defer w.Close()
		name := func(text string) {
			mu.Lock()
			named = text
			mu.Unlock()
			<-time.After(3 * time.Second)
			first.counts()
			said.take()
		}
		fails(t, w, first)
		name(second.config())
		<-time.After(time.Minute)
		if dialed, _ := first.counts(); dialed != 0 || said.take() != "" {
			t.Errorf("the first one is looked for %d times though the second is named and not there", dialed)
		}
		second.set(true)
		<-time.After(2 * time.Second)
		if got := said.take(); got != "crontabs.example.com: <nil>" {
			t.Errorf("of the second, reported %q", got)
		}
		second.set(false)
		fails(t, w, second)
		if got := said.take(); strings.Count(got, "second.example.com") != 1 {
			t.Errorf("of the second's end, reported %q", got)
		}
		mu.Lock()
		named = ""
		mu.Unlock()
		<-time.After(2 * time.Second)
		if got := said.take(); got != "crontabs.example.com: <nil>" {
			t.Errorf("of none, reported %q", got)
		}
		second.counts()
		<-time.After(time.Minute)
		if dialed, _ := second.counts(); dialed != 0 {
			t.Errorf("it is looked for %d times though nobody names it", dialed)
		}
	})
}
