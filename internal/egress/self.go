package egress

import (
	"net/http"
	"net/http/httptrace"
)

// self is the host name and port of this server's own Service.
const self = "kubernetes.default.svc:443"

// NewWebhookTransport is like NewTransport, for a webhook. Self handles the requests if this server serves the webhook:
// the destination is the Service default/kubernetes on port 443, or a URL with that host. Such requests use this
// server's own identity, as in kube-apiserver (NewDefaultAuthenticationInfoResolverWrapper of
// k8s.io/apiserver/pkg/util/webhook). A user's own requests must therefore never use this
// function.
func (d *Dialer) NewWebhookTransport(o Options) (*Transport, error) {
	if d.Self != nil && (o.Address == self || o.Service != nil && o.Service.HostPort() == self) {
		o.override, o.CABundle = inProcess{d.Self}, nil // no TLS, so no certificate to verify
		o.Certificate, o.Rotations, o.Wrap = nil, nil, nil
	}
	return d.NewTransport(o)
}

// inProcess handles requests without a connection.
type inProcess struct{ http.RoundTripper }

// RoundTrip reports a connection to the trace. The circuit breaker then treats a missing response as that of a slow
// destination, not of an unreachable one.
func (p inProcess) RoundTrip(req *http.Request) (*http.Response, error) {
	httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{})
	return p.RoundTripper.RoundTrip(req)
}
