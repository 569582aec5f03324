package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// answers is an http.RoundTripper.
type answers func(*http.Request) (*http.Response, error)

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

var errDialled = errors.New("dialled")

// newSelf returns a Dialer whose connections all fail with errDialled, and whose server answers thus.
func newSelf(answer answers) *Dialer {
	dial := func(context.Context, string, string) (net.Conn, error) { return nil, errDialled }
	return &Dialer{
		Self: answer, Cluster: dial, ControlPlane: dial,
		Resolve: func(context.Context, string, string, int32) (string, error) { return "10.0.0.1:443", nil },
	}
}

func post(t *testing.T, tr *Transport) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+tr.host+"/apis/g/v1/reviews", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// As with kube-apiserver, a webhook at port 443 of the Service kubernetes is this server, whatever CA is told of it. Another port, and
// whatever is no webhook, is called as others are: nothing of a user's may go out in the name of this server.
func TestWebhookAtTheAPI(t *testing.T) {
	d := newSelf(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("self"))}, nil
	})
	kubernetes := Service{"default", "kubernetes", 443}
	for _, c := range []struct {
		options Options
		open    func(Options) (*Transport, error)
		self    bool
	}{
		{Options{Service: &kubernetes}, d.NewWebhookTransport, true},
		{Options{Service: &kubernetes, CABundle: []byte("none")}, d.NewWebhookTransport, true},
		{Options{Address: "kubernetes.default.svc:443"}, d.NewWebhookTransport, true},
		{Options{Service: &Service{"default", "kubernetes", 6443}}, d.NewWebhookTransport, false},
		{Options{Service: &Service{"other", "kubernetes", 443}}, d.NewWebhookTransport, false},
		{Options{Service: &Service{"default", "other", 443}}, d.NewWebhookTransport, false},
		{Options{Address: "kubernetes.default:443"}, d.NewWebhookTransport, false},
		{Options{Service: &kubernetes}, d.NewTransport, false},
		{Options{Address: "kubernetes.default.svc:443", EndpointOf: &Service{"n", "s", 443}}, d.NewTransport, false},
		{Options{Service: &kubernetes}, (&Dialer{Cluster: d.Cluster, Resolve: d.Resolve}).NewWebhookTransport, false},
	} {
		tr, err := c.open(c.options)
		if err != nil {
			t.Fatal(err)
		}
		text, err := post(t, tr)
		if self := text == "self" && err == nil; self != c.self || !self && !errors.Is(err, errDialled) {
			t.Errorf("%+v: %q, %v; by this server: want %t", c.options, text, err, c.self)
		}
		tr.Close()
	}
}

// This server has the limits that others have: on the size of an answer and its time. When it does not answer, only requests
// can tell that it does again.
func TestLimitsOfTheAPI(t *testing.T) {
	open := func(o Options, answer answers) *Transport {
		o.Address = self
		tr, err := newSelf(answer).NewWebhookTransport(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(tr.Close)
		return tr
	}
	large := open(Options{MaxBytes: 10}, func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("more than ten"))}, nil
	})
	if text, err := post(t, large); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%q, %v", text, err)
	}
	hangs := open(Options{MaxBytes: 10, Timeout: time.Millisecond}, func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	for range tripAfter {
		if hangs.Err() != nil {
			t.Error("open already")
		}
		if _, err := post(t, hangs); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	if back := hangs.Probe(t.Context()); back || hangs.Err() == nil {
		t.Errorf("back %t, %v", back, hangs.Err())
	}
	hangs.HalfOpen() // as after a start, when nothing has been asked
	if back := hangs.Probe(t.Context()); !back {
		t.Error("a server that is there is taken as away")
	}
}
