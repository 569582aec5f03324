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

// roundTripFunc implements http.RoundTripper.
type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

var errDialled = errors.New("dialled")

// newSelf returns a Dialer whose connections all fail with errDialled. The function self handles the requests to
// the server's own webhooks.
func newSelf(self roundTripFunc) *Dialer {
	dial := func(context.Context, string, string) (net.Conn, error) { return nil, errDialled }
	return &Dialer{
		Self: self, Cluster: dial, ControlPlane: dial,
		Resolve: func(context.Context, string, string, int32) (string, error) { return "10.0.0.1:443", nil },
	}
}

func post(t *testing.T, tr *Transport) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+tr.host+"/apis/g/v1/reviews",
		strings.NewReader("{}"))
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

// TestWebhookAtTheAPI checks that this server itself handles the requests to a webhook at port 443 of Service
// default/kubernetes, whatever the CA bundle, as kube-apiserver does. Other ports and other kinds of requests use
// connections, because a user's own requests must not use the server's identity.
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
			t.Errorf("%+v: %q, %v; handled in process: want %t", c.options, text, err, c.self)
		}
		tr.Close()
	}
}

// TestLimitsOfTheAPI checks that the limits on size and time also apply to webhooks that this server serves
// itself. If such a webhook does not respond, a probe cannot close the circuit breaker.
func TestLimitsOfTheAPI(t *testing.T) {
	open := func(o Options, answer roundTripFunc) *Transport {
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
			t.Error("the circuit breaker opened early")
		}
		if _, err := post(t, hangs); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	if recovered := hangs.Probe(t.Context()); recovered || hangs.Err() == nil {
		t.Errorf("Probe reports recovery: %t, Err: %v", recovered, hangs.Err())
	}
	hangs.HalfOpen() // the state after a restart, before the first request
	if recovered := hangs.Probe(t.Context()); !recovered {
		t.Error("Probe does not report recovery of a reachable server")
	}
}
