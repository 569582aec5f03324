package egress

import (
	"net/http"
	"net/http/httptrace"
)

// self is the Service, with its port, by which this server knows itself.
const self = "kubernetes.default.svc:443"

// NewWebhookTransport is NewTransport for a webhook. One that is at the API itself, by its Service or by a URL with the name of
// that, is asked in the name of this server, by Self, as kube-apiserver does (NewDefaultAuthenticationInfoResolverWrapper of
// k8s.io/apiserver/pkg/util/webhook). What a user sends must never go this way.
func (d *Dialer) NewWebhookTransport(o Options) (*Transport, error) {
	if d.Self != nil && (o.Address == self || o.Service != nil && o.Service.HostPort() == self) {
		o.itself, o.CABundle = inProcess{d.Self}, nil // nobody has to prove who they are
		o.Certificate, o.Rotations, o.Wrap = nil, nil, nil
	}
	return d.NewTransport(o)
}

// inProcess answers without a connection.
type inProcess struct{ http.RoundTripper }

// RoundTrip says that there is a connection: to the circuit breaker, who does not answer is slow, and not away.
func (p inProcess) RoundTrip(req *http.Request) (*http.Response, error) {
	httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{})
	return p.RoundTripper.RoundTrip(req)
}
