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

// tlsHost is a host in a synctest bubble that accepts TLS connections and sends no response.
type tlsHost struct {
	name string
	ca   []byte

	mu           sync.Mutex
	certificate  tls.Certificate
	alive, mute  bool
	dialed       int
	requestBytes int // number of request bytes
}

func newTLSHost(t *testing.T, name string) *tlsHost {
	s := &tlsHost{name: name}
	s.certificate, s.ca = certificateFor(t, name)
	return s
}

func (s *tlsHost) config() string {
	return fmt.Sprintf(`{"conversionReviewVersions":["v1"],"clientConfig":{"url":"https://%s/convert","caBundle":%q}}`,
		s.name, base64.StdEncoding.EncodeToString(s.ca))
}

func (s *tlsHost) set(alive bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alive = alive
}

// counts returns the number of connections and of request bytes since the previous call of counts.
func (s *tlsHost) counts() (dialed, requestBytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dialed, requestBytes, s.dialed, s.requestBytes = s.dialed, s.requestBytes, 0, 0
	return dialed, requestBytes
}

func (s *tlsHost) dial() (net.Conn, error) {
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
		n, _ := c.Read(make([]byte, 1024)) // the connection is closed when the function returns
		s.mu.Lock()
		s.requestBytes += n
		mute := s.mute
		s.mu.Unlock()
		for mute { // until the client closes the connection
			_, err := c.Read(make([]byte, 1024))
			mute = err == nil
		}
	}()
	return client, nil
}

// newHostWebhooks returns Webhooks that can connect to the hosts.
func newHostWebhooks(reported *reports, names func(string) string, hosts ...*tlsHost) *Webhooks {
	return NewWebhooks(WebhookConfig{Report: reported.report, WebhookOf: names,
		Egress: &egress.Dialer{ControlPlane: func(_ context.Context, _, address string) (net.Conn, error) {
			for _, s := range hosts {
				if address == s.name+":443" {
					return s.dial()
				}
			}
			return nil, io.ErrUnexpectedEOF
		}}})
}

// openBreaker makes calls until they fail immediately.
func openBreaker(t *testing.T, w *Webhooks, s *tlsHost) {
	t.Helper()
	for range 2 * tripAfter {
		if convertOne(w, s.config()) == nil {
			t.Fatal("the call succeeded")
		}
	}
}

// take returns the reports since the previous call of take as one string.
func (r *reports) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	reported := r.texts
	r.texts = nil
	return strings.Join(reported, "; ")
}

// TestWebhookIsProbed checks that the server detects within two seconds that a webhook is reachable again. This needs
// no call, and the probes send no request.
// CNV-059
func TestWebhookIsProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported reports
		s := newTLSHost(t, "hook.example.com")
		w := newHostWebhooks(&reported, func(string) string { return s.config() }, s)
		defer w.Close()
		openBreaker(t, w, s)
		if got := reported.take(); strings.Count(got, "connection refused") != 1 {
			t.Fatalf("reported %q", got)
		}
		s.counts()
		<-time.After(time.Minute)
		if dialed, _ := s.counts(); dialed < 59 || dialed > 60 {
			t.Errorf("got %d probes in a minute", dialed)
		}
		s.set(true)
		<-time.After(2 * time.Second)
		if got := reported.take(); got != "crontabs.example.com: <nil>" {
			t.Errorf("two seconds after its return: got report %q", got)
		}
		s.counts()
		<-time.After(time.Minute)
		if dialed, requestBytes := s.counts(); dialed != 0 || requestBytes != 0 {
			t.Errorf("got %d probes of a reachable webhook and %d request bytes", dialed, requestBytes)
		}
	})
}

// TestConnectionWithoutResponse checks that a webhook that accepts connections but does not respond is not reported
// as reachable. Otherwise the condition in the CRD would change every other second. The webhook is reported as
// reachable after a restart during which it refused connections.
func TestConnectionWithoutResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported reports
		s := newTLSHost(t, "hook.example.com")
		w := newHostWebhooks(&reported, nil, s)
		defer w.Close()
		s.set(true)
		openBreaker(t, w, s)
		if got := reported.take(); strings.Count(got, "crontabs") != 1 {
			t.Fatalf("reported %q", got)
		}
		<-time.After(time.Minute)
		if got := reported.take(); got != "" {
			t.Errorf("reported %q", got)
		}
		s.set(false)
		<-time.After(3 * time.Second)
		s.set(true)
		<-time.After(2 * time.Second)
		if got := reported.take(); got != "crontabs.example.com: <nil>" {
			t.Errorf("after a restart: got report %q", got)
		}
	})
}

// TestUnresponsiveWebhookAfterRestart checks a webhook that was unreachable before the server started and now accepts
// connections but does not respond. It is reported as reachable, and as unreachable after the first call that times
// out. Later probes do not report it as reachable again.
func TestUnresponsiveWebhookAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported reports
		s := newTLSHost(t, "hook.example.com")
		s.alive, s.mute = true, true
		w := newHostWebhooks(&reported, func(string) string { return s.config() }, s)
		defer w.Close()
		w.HalfOpen("crontabs.example.com")
		<-time.After(2 * time.Second)
		if got := reported.take(); got != "crontabs.example.com: <nil>" {
			t.Fatalf("webhook that accepts connections: got report %q", got)
		}
		if convertOne(w, s.config()) == nil {
			t.Fatal("the call succeeded")
		}
		if got := reported.take(); strings.Count(got, "crontabs") != 1 || strings.Contains(got, "<nil>") {
			t.Errorf("after the first call, reported %q", got)
		}
		<-time.After(time.Minute)
		if got := reported.take(); got != "" {
			t.Errorf("webhook that always accepts connections: got report %q", got)
		}
	})
}

// TestWrongCertificateIsUnreachable checks that a webhook with a wrong certificate counts as unreachable.
func TestWrongCertificateIsUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported reports
		s := newTLSHost(t, "hook.example.com")
		good := s.certificate
		s.certificate, _ = certificateFor(t, s.name)
		w := newHostWebhooks(&reported, nil, s)
		defer w.Close()
		s.set(true)
		openBreaker(t, w, s)
		<-time.After(time.Minute)
		if got := reported.take(); strings.Count(got, "crontabs") != 1 || !strings.Contains(got, "x509") {
			t.Fatalf("reported %q", got)
		}
		s.mu.Lock()
		s.certificate = good
		s.mu.Unlock()
		<-time.After(2 * time.Second)
		if got := reported.take(); got != "crontabs.example.com: <nil>" {
			t.Errorf("reported %q", got)
		}
	})
}

// TestWebhookIsReplaced checks that probing ends and a report is made when a CRD no longer has a webhook. If the CRD
// has another webhook instead, it gets the state of that webhook.
// CNV-073
func TestWebhookIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported reports
		var mu sync.Mutex
		first, second := newTLSHost(t, "first.example.com"), newTLSHost(t, "second.example.com")
		named := first.config()
		w := newHostWebhooks(&reported, func(string) string {
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
			reported.take()
		}
		openBreaker(t, w, first)
		name(second.config())
		<-time.After(time.Minute)
		if dialed, _ := first.counts(); dialed != 0 || reported.take() != "" {
			t.Errorf("got %d probes of the replaced webhook", dialed)
		}
		second.set(true)
		<-time.After(2 * time.Second)
		if got := reported.take(); got != "crontabs.example.com: <nil>" {
			t.Errorf("second webhook: got report %q", got)
		}
		second.set(false)
		openBreaker(t, w, second)
		if got := reported.take(); strings.Count(got, "second.example.com") != 1 {
			t.Errorf("after the end of the second webhook: got report %q", got)
		}
		mu.Lock()
		named = ""
		mu.Unlock()
		<-time.After(2 * time.Second)
		if got := reported.take(); got != "crontabs.example.com: <nil>" {
			t.Errorf("without a webhook: got report %q", got)
		}
		second.counts()
		<-time.After(time.Minute)
		if dialed, _ := second.counts(); dialed != 0 {
			t.Errorf("got %d probes of an unused webhook", dialed)
		}
	})
}
