package egress

import (
	"net/http"
	"net/http/httptrace"
)

// self is the host name and port of this server's own Service.
const self = "kubernetes.default.svc:443"

// NewWebhookTransport is like NewTransport, but for a webhook. If this server serves the webhook, Dialer.Self
// handles the requests. This is the case if the destination is port 443 of the Service default/kubernetes, or a
// URL with the host and port of that Service. Such requests use this server's own identity, as in kube-apiserver
// (NewDefaultAuthenticationInfoResolverWrapper of k8s.io/apiserver/pkg/util/webhook). Requests that a user makes
// must therefore use NewTransport.
func (d *Dialer) NewWebhookTransport(o Options) (*Transport, error) {
	if d.Self != nil && (o.Address == self || o.Service != nil && o.Service.HostPort() == self) {
		o.override, o.CABundle = inProcess{d.Self}, nil // no TLS, so no certificate to verify
		o.Certificate, o.Rotations, o.Wrap = nil, nil, nil
	}
	return d.NewTransport(o)
}

// inProcess handles requests without a connection.
type inProcess struct{ http.RoundTripper }

// RoundTrip reports a connection to the request's trace. If there is no response, the circuit breaker then
// considers the destination slow and not unreachable.
func (p inProcess) RoundTrip(req *http.Request) (*http.Response, error) {
	httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{})
	return p.RoundTripper.RoundTrip(req)
}
