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

// speaker is a webhook in a bubble that does with its connections what a test wants.
type speaker struct {
	name   string
	ca     []byte
	config *tls.Config
	answer func(c *tls.Conn, json string) // writes the first response, and does what it wants with the connection
	later  func(c *tls.Conn, json string) // the same for the others

	mu   sync.Mutex
	open []net.Conn
}

func newSpeaker(t *testing.T, answer, later func(c *tls.Conn, json string)) *speaker {
	certificate, ca := certificateFor(t, "hook.example.com")
	return &speaker{name: "hook.example.com", ca: ca, config: &tls.Config{Certificates: []tls.Certificate{certificate}}, answer: answer, later: later}
}

// webhook is its spec.conversion.webhook.
func (s *speaker) webhook() string { return (&site{name: s.name, ca: s.ca}).config() }

func (s *speaker) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = append(s.open, server)
	go s.serve(tls.Server(server, s.config))
	return client, nil
}

func (s *speaker) serve(c *tls.Conn) {
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
		data, _ := json.Marshal(answered(q, nil))
		answer(c, string(data))
		answer = s.later
	}
}

// hangUp ends all connections as a process does that is killed.
func (s *speaker) hangUp() {
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

// What a reader has to hear of: a connection that breaks; and what not: the ends that this side or the webhook has
// announced, and connections on which nothing has been answered.
func TestBrokenConnectionsAreTold(t *testing.T) {
	half := func(c *tls.Conn, _ string) {
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
		c.Close()
	}
	mute := func(*tls.Conn, string) {}
	again := func(w *Webhooks, s *speaker) { _ = convertOne(w, s.webhook()) }
	for name, c := range map[string]struct {
		answer, later func(c *tls.Conn, json string)
		then          func(w *Webhooks, s *speaker)
		want          int
	}{
		"it is killed": {answer: plainAnswer, then: func(_ *Webhooks, s *speaker) { s.hangUp() }, want: 1},
		"it hangs up right behind the answer": {answer: func(c *tls.Conn, json string) {
			plainAnswer(c, json)
			c.Close()
		}, want: 1},
		"it hangs up in the middle of an answer": {answer: plainAnswer, later: half, then: again, want: 1},
		"it has said so": {answer: func(c *tls.Conn, json string) {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(json), json)
			c.Close()
		}},
		"it has said so, and the answer ends where it hangs up": {answer: func(c *tls.Conn, json string) {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n%s", json)
			c.Close()
		}},
		"nobody uses it":         {answer: plainAnswer, then: func(*Webhooks, *speaker) { <-time.After(3 * time.Minute) }},
		"this side ends":         {answer: plainAnswer, then: func(w *Webhooks, _ *speaker) { w.Close() }},
		"nothing was answered":   {answer: func(c *tls.Conn, _ string) { c.Close() }},
		"nobody answers in time": {answer: plainAnswer, later: mute, then: again},
		"this side gives a call up": {answer: plainAnswer, later: mute, then: func(w *Webhooks, s *speaker) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, _ = w.Convert(ctx, version("v1", s.webhook()), []object.Tree{cronTab("a")})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSpeaker(t, c.answer, c.later)
				config := s.webhook()
				var told atomic.Int64
				w := NewWebhooks(WebhookConfig{Egress: &egress.Dialer{ControlPlane: s.dial}, Disconnected: func(text string) {
					if text == config {
						told.Add(1)
					}
				}})
				if err := convertOne(w, config); err != nil && name != "nothing was answered" {
					t.Fatal(err)
				}
				if c.then != nil {
					c.then(w, s)
				}
				<-time.After(time.Minute) // all that ends has ended
				w.Close()
				<-time.After(time.Minute)
				if got := told.Load(); got != int64(c.want) {
					t.Errorf("told %d times, want %d", got, c.want)
				}
			})
		})
	}
}

// A webhook that goes away says so over HTTP/2 in a frame of its own: nothing is read afterwards. A call that was given up, or
// is under way, makes no difference.
func TestGoingAwayIsTold(t *testing.T) {
	for _, busy := range []bool{false, true} {
		entered, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
		h := newRawHook(t, func(w http.ResponseWriter, q review) {
			if len(q.Request.Objects) > 1 {
				entered <- struct{}{}
				<-leave
			}
			_ = json.NewEncoder(w).Encode(answered(q, nil))
		}).quiet()
		told := make(chan string, 10)
		w := NewWebhooks(WebhookConfig{Disconnected: func(text string) { told <- text }})
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
		case text := <-told:
			if text != h.config() {
				t.Errorf("told of %s", text)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("not told, busy: %v", busy)
		}
	}
}

// Whoever stands behind a Service is called from the next call on, even where connections to those before are open.
func TestServiceThatLeadsElsewhere(t *testing.T) {
	before, after := named(t, "plain.default.svc"), named(t, "plain.default.svc")
	after.TLS.Certificates, after.TLS.GetConfigForClient = before.TLS.Certificates, before.TLS.GetConfigForClient
	var to atomic.Pointer[hook]
	to.Store(before)
	var number atomic.Uint64
	var broken atomic.Int64
	w := NewWebhooks(WebhookConfig{
		Egress: &egress.Dialer{
			IsLocal: everyService,
			Resolve: func(context.Context, string, string, int32) (string, error) {
				return to.Load().Listener.Addr().String(), nil
			},
			Generation: func(namespace, name string) func() uint64 {
				if namespace != "default" || name != "plain" {
					t.Errorf("asked for %s/%s", namespace, name)
				}
				return number.Load
			},
		},
		Disconnected: func(string) { broken.Add(1) },
	})
	defer w.Close()
	config := fmt.Sprintf(`{"conversionReviewVersions":["v1"],"clientConfig":{"service":{"namespace":"default","name":"plain"},"caBundle":%s}}`, strconv.Quote(before.ca()))
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
		t.Error("a connection that is open is used as long as the Service has not changed")
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
		t.Error("nothing has broken")
	}
}

// Who asks can tell a webhook that gives no answer from one that gives another one.
func TestUnreachableIsTold(t *testing.T) {
	none := newRawHook(t, func(http.ResponseWriter, review) { panic(http.ErrAbortHandler) }).quiet()
	busy := newRawHook(t, func(w http.ResponseWriter, _ review) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "busy")
	})
	for name, c := range map[string]struct {
		hook *hook
		want bool
	}{"no answer": {none, true}, "503": {busy, true}, "a refusal": {newHook(t, changes["failed"]), false}, "one too many": {newHook(t, changes["one too many"]), false}} {
		err := convertOne(newWebhooks(t, ""), c.hook.config())
		var unreachable *UnreachableError
		if err == nil || errors.As(err, &unreachable) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
