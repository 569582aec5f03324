package conversion

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/object"
)

// rawServer is a webhook in a synctest bubble that controls its connections.
type rawServer struct {
	name   string
	ca     []byte
	config *tls.Config
	answer func(c *tls.Conn, json string) // writes the first response of a connection and may close the connection
	later  func(c *tls.Conn, json string) // writes the later responses of a connection

	mu   sync.Mutex
	open []net.Conn
}

func newRawServer(t *testing.T, answer, later func(c *tls.Conn, json string)) *rawServer {
	certificate, ca := certificateFor(t, "hook.example.com")
	return &rawServer{name: "hook.example.com", ca: ca,
		config: &tls.Config{Certificates: []tls.Certificate{certificate}}, answer: answer, later: later}
}

// webhook returns spec.conversion.webhook of a CRD that uses s.
func (s *rawServer) webhook() string { return (&tlsHost{name: s.name, ca: s.ca}).config() }

func (s *rawServer) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = append(s.open, server)
	go s.serve(tls.Server(server, s.config))
	return client, nil
}

func (s *rawServer) serve(c *tls.Conn) {
	defer c.Close()
	answer := s.answer
	for in := bufio.NewReader(c); ; {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		var q review
		if json.NewDecoder(r.Body).Decode(&q) != nil {
			return
		}
		data, _ := json.Marshal(respondTo(q, nil))
		answer(c, string(data))
		answer = s.later
	}
}

// closeConnections closes all connections, as if the process of the webhook had ended.
func (s *rawServer) closeConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.open {
		c.Close()
	}
	s.open = nil
}

func plainAnswer(c *tls.Conn, json string) {
	fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(json), json)
}

// TestBrokenConnectionsAreReported checks that a broken connection is reported. A connection is not reported if the
// client closes it, if the webhook announces the close, or if there was no response.
func TestBrokenConnectionsAreReported(t *testing.T) {
	half := func(c *tls.Conn, _ string) {
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
		c.Close()
	}
	mute := func(*tls.Conn, string) {}
	again := func(w *Webhooks, s *rawServer) { _ = convertOne(w, s.webhook()) }
	for name, c := range map[string]struct {
		answer, later func(c *tls.Conn, json string)
		then          func(w *Webhooks, s *rawServer)
		want          int
	}{
		"killed": {answer: plainAnswer, then: func(_ *Webhooks, s *rawServer) { s.closeConnections() }, want: 1},
		"closed after the response": {answer: func(c *tls.Conn, json string) {
			plainAnswer(c, json)
			c.Close()
		}, want: 1},
		"closed in the middle of a response": {answer: plainAnswer, later: half, then: again, want: 1},
		"announced close": {answer: func(c *tls.Conn, json string) {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(json), json)
			c.Close()
		}},
		"announced close ends the response": {answer: func(c *tls.Conn, json string) {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n%s", json)
			c.Close()
		}},
		"idle": {answer: plainAnswer, then: func(*Webhooks,
			*rawServer) {
			<-time.After(3 * time.Minute)
		}},
		"Webhooks closed":           {answer: plainAnswer, then: func(w *Webhooks, _ *rawServer) { w.Close() }},
		"closed without a response": {answer: func(c *tls.Conn, _ string) { c.Close() }},
		"no response in time":       {answer: plainAnswer, later: mute, then: again},
		"canceled call": {answer: plainAnswer, later: mute, then: func(w *Webhooks, s *rawServer) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, _ = w.Convert(ctx, version("v1", s.webhook()), []object.Tree{cronTab("a")})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRawServer(t, c.answer, c.later)
				config := s.webhook()
				var disconnects atomic.Int64
				w := NewWebhooks(WebhookConfig{Egress: &egress.Dialer{ControlPlane: s.dial},
					Disconnected: func(text string) {
						if text == config {
							disconnects.Add(1)
						}
					}})
				if err := convertOne(w, config); err != nil && name != "closed without a response" {
					t.Fatal(err)
				}
				if c.then != nil {
					c.then(w, s)
				}
				<-time.After(time.Minute) // all timeouts have expired
				w.Close()
				<-time.After(time.Minute)
				if got := disconnects.Load(); got != int64(c.want) {
					t.Errorf("got %d reports, want %d", got, c.want)
				}
			})
		})
	}
}

// TestGoAwayIsReported checks that an HTTP/2 GOAWAY frame is reported, both on an idle connection and during a call.
// An earlier canceled call makes no difference.
func TestGoAwayIsReported(t *testing.T) {
	for _, busy := range []bool{false, true} {
		entered, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
		h := newRawHook(t, func(w http.ResponseWriter, q review) {
			if len(q.Request.Objects) > 1 {
				entered <- struct{}{}
				<-leave
			}
			_ = json.NewEncoder(w).Encode(respondTo(q, nil))
		}).discardErrorLog()
		disconnects := make(chan string, 10)
		w := NewWebhooks(WebhookConfig{Disconnected: func(text string) { disconnects <- text }})
		defer w.Close()
		if err := convertOne(w, h.config()); err != nil || h.last.Load().ProtoMajor != 2 {
			t.Fatal(err, h.last.Load().Proto)
		}
		two := func(ctx context.Context) {
			_, _ = w.Convert(ctx, version("v1", h.config()), []object.Tree{cronTab("a"), cronTab("b")})
		}
		ctx, giveUp := context.WithCancel(t.Context())
		go func() { <-entered; giveUp(); leave <- struct{}{}; close(left) }()
		two(ctx)
		if busy {
			go two(t.Context())
			<-entered
		}
		go func() { _ = h.Config.Shutdown(context.Background()) }()
		if <-left; busy {
			close(leave)
		}
		select {
		case text := <-disconnects:
			if text != h.config() {
				t.Errorf("got report of %s", text)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("got no report, busy: %v", busy)
		}
	}
}

// TestServiceEndpointsChange checks that the next call uses the new endpoint of a Service, even if connections to
// the old endpoint are open.
func TestServiceEndpointsChange(t *testing.T) {
	before, after := newNamedHook(t, "plain.default.svc"), newNamedHook(t, "plain.default.svc")
	after.TLS.Certificates, after.TLS.GetConfigForClient = before.TLS.Certificates, before.TLS.GetConfigForClient
	var to atomic.Pointer[hook]
	to.Store(before)
	var number atomic.Uint64
	var broken atomic.Int64
	w := NewWebhooks(WebhookConfig{
		Egress: &egress.Dialer{
			IsLocal: allowEveryService,
			Resolve: func(context.Context, string, string, int32) (string, error) {
				return to.Load().Listener.Addr().String(), nil
			},
			Generation: func(namespace, name string) func() uint64 {
				if namespace != "default" || name != "plain" {
					t.Errorf("resolved %s/%s", namespace, name)
				}
				return number.Load
			},
		},
		Disconnected: func(string) { broken.Add(1) },
	})
	defer w.Close()
	config := fmt.Sprintf(`{"conversionReviewVersions":["v1"],"clientConfig":{"service":{"namespace":"default",`+
		`"name":"plain"},"caBundle":%s}}`, strconv.Quote(before.ca()))
	call := func() {
		t.Helper()
		if err := convertOne(w, config); err != nil {
			t.Fatal(err)
		}
	}
	call()
	call()
	if n := w.Generation(config); n != 0 {
		t.Errorf("the generation is %d", n)
	}
	to.Store(after)
	call()
	if before.calls.Load() != 3 {
		t.Error("the open connection was not reused although the Service is unchanged")
	}
	number.Store(7)
	call()
	if before.calls.Load() != 3 || after.calls.Load() != 1 {
		t.Errorf("%d calls before, %d after", before.calls.Load(), after.calls.Load())
	}
	if n := w.Generation(config); n != 7 {
		t.Errorf("the generation is %d", n)
	}
	if broken.Load() != 0 {
		t.Error("a broken connection was reported")
	}
}

// TestUnreachableError checks that callers can distinguish a webhook without a response from one with a wrong
// response.
func TestUnreachableError(t *testing.T) {
	none := newRawHook(t, func(http.ResponseWriter, review) { panic(http.ErrAbortHandler) }).discardErrorLog()
	busy := newRawHook(t, func(w http.ResponseWriter, _ review) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "busy")
	})
	for name, c := range map[string]struct {
		hook *hook
		want bool
	}{"no answer": {none, true}, "503": {busy, true}, "a refusal": {newHook(t, changes["failed"]), false},
		"one too many": {newHook(t, changes["one too many"]), false}} {
		err := convertOne(newWebhooks(t, ""), c.hook.config())
		var unreachable *UnreachableError
		if err == nil || errors.As(err, &unreachable) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
