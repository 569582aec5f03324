package egress

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

const (
	handshakeTimeout = 10 * time.Second
	pingTimeout      = 5 * time.Second
	maxHeaderBytes   = 1 << 20   // of an answer
	streamBuffer     = 512 << 10 // bytes of an answer that wait for a reader
	// headerTable is how many bytes of headers are remembered to compress the next request's: none, as each has an Audit-Id that
	// would take the place of others, and that costs more than to send them.
	headerTable = 1
)

// Options say whom a Transport calls, and how.
type Options struct {
	// Name is what kind of request it is for metrics, as "conversion".
	Name string
	// Service is the destination, or else Address is, a host and port. Requests to a Service are HTTP/1.1, so that several
	// connections are opened and spread over its endpoints (https://issue.k8s.io/75791).
	Service *Service
	Address string
	// CABundle is whom to trust, in PEM; the system's CAs where there is nothing in it.
	CABundle []byte
	// Timeout bounds a request with all of its answer, or, where that is a stream, up to its header; 0: its context alone does.
	Timeout time.Duration
	// MaxBytes bounds an answer, which for the circuit breaker has then to arrive whole. 0: it is a stream, and its header will do.
	MaxBytes int64
	// Replayable says that two requests do no harm in place of one: one that is refused or broken off is sent once more.
	Replayable bool
	// Disconnected, unless nil, is told of a connection that breaks (connection). It must not block.
	Disconnected func()
	// EndpointOf is the Service that Address is an endpoint of: it names the host of requests, and the certificate has to name it.
	// nil: Address is a host of its own. Insecure accepts any certificate.
	EndpointOf *Service
	Insecure   bool
	// Certificate, unless nil, returns the client certificate of a handshake.
	Certificate func() (*tls.Certificate, error)
	// Rotations, unless nil, returns how often Certificate has changed: after each change, requests get new connections. It is called
	// for each request.
	Rotations func() uint64
	// Wrap, unless nil, returns a RoundTripper that adds credentials to the headers of requests and sends them by the Transport. Only
	// the client of Transport.Client uses it.
	Wrap func(*Transport) (http.RoundTripper, error)
	// PingEvery is how long a connection of HTTP/2 to an Address is silent before it is pinged, and then how long it has to
	// answer; 0: pingTimeout.
	PingEvery time.Duration
	// ClientTimeouts says that clients decide how long they wait, and break off as they like: the circuit breaker then counts only
	// connections that do not come to be.
	ClientTimeouts bool
	// Upgrades has each request be of HTTP/1.1 on a connection of its own, which its answer may turn into a stream.
	Upgrades bool

	itself http.RoundTripper // nil, or what answers in place of a destination
}

// Transport sends the requests for one destination: behind a circuit breaker, within limits, and counted. It follows no
// redirect, and has no client follow one. A Service whose endpoints have changed is connected to anew.
type Transport struct {
	options    Options
	host       string // the destination's, with its port
	metrics    *Metrics
	generation func() uint64
	template   *http.Transport // of pools
	pool       atomic.Pointer[pool]
	breaker    breaker
	client     http.Client
}

// NewTransport returns a Transport that the caller closes. The error is one of the options.
func (d *Dialer) NewTransport(o Options) (*Transport, error) {
	roots, err := certPool(o.CABundle)
	if err != nil {
		return nil, err
	}
	if o.Disconnected == nil {
		o.Disconnected = func() {}
	}
	t := &Transport{options: o, host: o.Address, metrics: d.Metrics, generation: func() uint64 { return 0 }}
	if t.metrics == nil {
		t.metrics = NewMetrics()
	}
	t.template = &http.Transport{
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    handshakeTimeout,
		MaxIdleConnsPerHost:    25,
		IdleConnTimeout:        idleTimeout,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}
	if s := o.Service; s != nil {
		t.host, t.template.TLSClientConfig.ServerName = s.HostPort(), s.serverName()
		t.template.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialService(ctx, *s) }
		if d.Generation != nil {
			t.generation = d.Generation(s.Namespace, s.Name)
		}
	} else {
		t.toAddress(d)
	}
	if o.Certificate != nil {
		t.template.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return o.Certificate() }
	}
	if endpoints := t.generation; o.Rotations != nil {
		t.generation = func() uint64 { return endpoints() + o.Rotations() } // both only grow
	}
	if t.client.Transport = t; o.Wrap != nil {
		if t.client.Transport, err = o.Wrap(t); err != nil {
			return nil, err
		}
	}
	t.host = strings.ToValidUTF8(t.host, "\ufffd") // metrics take nothing else, and a URL may have it
	if o.MaxBytes == 0 {
		t.template.ResponseHeaderTimeout = o.Timeout
	}
	t.breaker.reset()
	t.pool.Store(newPool(t.template, t.generation(), o.Disconnected))
	t.metrics.add(t)
	return t, nil
}

// toAddress has connections be to a host and port.
func (t *Transport) toAddress(d *Dialer) {
	o, of := &t.options, t.template
	of.DialContext, of.Proxy = d.DialContext, d.Proxy
	of.TLSClientConfig.InsecureSkipVerify = o.Insecure
	if s := o.EndpointOf; s != nil {
		of.TLSClientConfig.ServerName, of.Proxy = s.serverName(), nil
		of.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			return d.DialEndpoint(ctx, *s, network, address)
		}
	}
	ping := cmp.Or(o.PingEvery, pingTimeout)
	of.ForceAttemptHTTP2, of.DisableKeepAlives = !o.Upgrades, o.Upgrades
	of.HTTP2 = &http.HTTP2Config{SendPingTimeout: ping, PingTimeout: ping, MaxReceiveBufferPerStream: streamBuffer, MaxEncoderHeaderTableSize: headerTable}
}

// certPool is nil, the system's, for a bundle in which there is nothing.
func certPool(bundle []byte) (*x509.CertPool, error) {
	if len(bytes.TrimSpace(bundle)) == 0 {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, errors.New("unable to load root certificates: unable to parse bytes as PEM block")
	}
	return pool, nil
}

// Client returns a client over the Transport, with the credentials of Options.Wrap.
func (t *Transport) Client() *http.Client { return &t.client }

// Close closes the connections that are idle. Requests under way go on.
func (t *Transport) Close() {
	t.pool.Load().retire()
	t.metrics.remove(t)
}

// Generation is that of the endpoints which the next request may go to.
func (t *Transport) Generation() uint64 { return t.generation() }

// connections returns the pool for the endpoints that there are now.
func (t *Transport) connections() *pool {
	for {
		p, now := t.pool.Load(), t.generation()
		if now <= p.generation {
			return p
		}
		if fresh := newPool(t.template, now, t.options.Disconnected); t.pool.CompareAndSwap(p, fresh) {
			p.retire()
			return fresh
		}
	}
}

// sender is what a request is sent by.
func (t *Transport) sender() http.RoundTripper {
	if t.options.itself != nil {
		return t.options.itself
	}
	return t.connections()
}

// Err is why requests fail at once, but for one at a time; nil while the circuit breaker is closed.
func (t *Transport) Err() error { return t.breaker.err() }

// HalfOpen says that the destination could not be reached before there was this Transport, so that Probe tells if it can be, and
// that the first request to fail is one too many: it may accept connections and answer nothing.
func (t *Transport) HalfOpen() {
	t.breaker.refused.Store(true)
	t.breaker.suspect.Store(true)
}

// Probe opens a connection and closes it, with all of TLS and no request. back says that the destination accepts connections
// again that it refused before, which closes the circuit breaker. One that has always accepted them, and does not answer, is
// tried by requests alone.
func (t *Transport) Probe(ctx context.Context) (back bool) {
	ctx, cancel := context.WithTimeout(ctx, openFor)
	defer cancel()
	return t.breaker.probed(t.Handshake(ctx))
}

// Handshake opens a connection and closes it, with all of TLS and no request.
func (t *Transport) Handshake(ctx context.Context) error {
	if t.options.itself != nil {
		return nil
	}
	conn, err := t.connections().NewClientConn(ctx, "https", t.host)
	if err != nil {
		return err
	}
	return conn.Close()
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	done, err := t.breaker.allow()
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	x := newExchange(t, req, done)
	resp, err := x.send(req)
	if err != nil && t.options.Replayable && req.Context().Err() == nil && worthAnother(err) {
		if again, ok := replay(req); ok {
			resp, err = x.send(again)
		}
	}
	t.metrics.observe(t, req.Method, resp, time.Since(x.began))
	if err != nil {
		x.end(err)
		return nil, err
	}
	return x.answer(resp), nil
}

// replay returns the request once more.
func replay(req *http.Request) (*http.Request, bool) {
	again := req.Clone(req.Context())
	if req.Body == nil || req.Body == http.NoBody {
		return again, true
	}
	if req.GetBody == nil {
		return nil, false
	}
	body, err := req.GetBody()
	again.Body = body
	return again, err == nil
}

// worthAnother says that an error may be one of this connection alone. A time-out is not, nor is a certificate.
func worthAnother(err error) bool {
	var network net.Error
	var certificate *tls.CertificateVerificationError
	return !(errors.As(err, &network) && network.Timeout()) && !errors.As(err, &certificate)
}
