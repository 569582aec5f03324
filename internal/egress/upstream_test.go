package egress

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// guarded is how upstream's webhook clients are given the way out: AuthenticationInfoResolver and ServiceResolver.
type guarded struct {
	*Dialer
	made []*Transport
}

func (g *guarded) config(o Options, dial func(ctx context.Context, network, address string) (net.Conn, error)) (*rest.Config, error) {
	return &rest.Config{Dial: dial, WrapTransport: func(base http.RoundTripper) http.RoundTripper {
		o.Name, o.MaxBytes, o.Base = "admission", 1000, base
		t, err := g.NewTransport(o)
		if err != nil {
			panic(err)
		}
		g.made = append(g.made, t)
		return t
	}}, nil
}

func (g *guarded) ClientConfigFor(hostPort string) (*rest.Config, error) {
	return g.config(Options{Address: hostPort}, g.DialContext)
}

func (g *guarded) ClientConfigForService(name, namespace string, port int) (*rest.Config, error) {
	s := Service{namespace, name, int32(port)}
	return g.config(Options{Service: &s}, func(ctx context.Context, _, _ string) (net.Conn, error) { return g.DialService(ctx, s) })
}

func (g *guarded) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return &url.URL{Scheme: "https", Host: Service{namespace, name, port}.HostPort()}, nil
}

const reviewed = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true}}`

// Upstream's webhook clients take the way out: by their own configuration of TLS, with a circuit breaker, limits, and no redirects.
func TestUpstreamsClients(t *testing.T) {
	for name, config := range map[string]webhook.ClientConfig{
		"s.n.svc": {Name: "hook", Service: &webhook.ClientConfigService{Namespace: "n", Name: "s", Path: "/p", Port: 443}},
		host:      {Name: "hook", URL: "https://" + host + "/p"},
	} {
		answers := says(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(reviewed), reviewed))
		d := newDestination(t, name, answers)
		g := &guarded{Dialer: &Dialer{Cluster: d.dial, ControlPlane: d.dial, Metrics: NewMetrics(), Resolve: func(context.Context, string, string, int32) (string, error) { return "10.0.0.1:443", nil }}}
		manager, err := webhook.NewClientManager([]schema.GroupVersion{admissionv1.SchemeGroupVersion}, admissionv1.AddToScheme)
		if err != nil {
			t.Fatal(err)
		}
		manager.SetAuthenticationInfoResolver(g)
		manager.SetServiceResolver(g)
		config.CABundle = d.ca
		client, err := manager.HookClient(config)
		if err != nil {
			t.Fatal(err)
		}
		call := func() (allowed bool, err error) {
			var review admissionv1.AdmissionReview
			err = client.Post().Body(&admissionv1.AdmissionReview{}).Do(t.Context()).Into(&review)
			return review.Response != nil && review.Response.Allowed, err
		}
		if allowed, err := call(); !allowed || err != nil {
			t.Errorf("%s: %v", name, err)
		}
		requests := d.requests.Load()
		redirects := says("HTTP/1.1 307 Temporary Redirect\r\nLocation: https://elsewhere/\r\nContent-Length: 0\r\n\r\n")
		d.answer.Store(&redirects)
		if _, err := call(); err == nil || d.requests.Load() != requests+1 {
			t.Errorf("%s redirects: %v", name, err)
		}
		large := says("HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" + strings.Repeat("x", 1001))
		d.answer.Store(&large)
		if _, err := call(); err == nil || !strings.Contains(err.Error(), "larger than 1000 bytes") {
			t.Errorf("%s answers too much: %v", name, err)
		}
		ended := ends("")
		d.answer.Store(&ended)
		for range tripAfter {
			_, _ = call()
		}
		requests = d.requests.Load()
		if _, err := call(); err == nil || !strings.Contains(err.Error(), "EOF") || d.requests.Load() != requests || len(g.made) != 1 || g.made[0].Err() == nil {
			t.Errorf("%s, once it is dead: %v", name, err)
		}
	}
}

// A Transport is a rest.Config's, too.
func TestRESTClient(t *testing.T) {
	d := newDestination(t, host, says("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	c := newCaller(t, d, Options{MaxBytes: 1000})
	defer c.Close()
	client, err := rest.HTTPClientFor(&rest.Config{Host: "https://" + host, Transport: c.Transport})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get("https://" + host)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := c.shows()["rest_client_requests_total{200,"+c.host+",GET}"]; got != 1 {
		t.Errorf("%v requests are counted", got)
	}
}
