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
	maxHeaderBytes   = 1 << 20   // of a response
	streamBuffer     = 512 << 10 // bytes of a response buffered for a slow reader
	// headerTable is the size of the HPACK encoder's table in bytes. The size 1 disables the table. Each request
	// has a different Audit-Id, which would evict useful entries. Maintaining the table costs more than sending
	// the headers.
	headerTable = 1
)

// Options configures a Transport.
type Options struct {
	// Name is the kind of request in metrics, such as "conversion".
	Name string
	// Service is the destination. nil means Address. Requests to a Service use HTTP/1.1, so that several connections
	// are opened and spread over its endpoints (https://issue.k8s.io/75791).
	Service *Service
	// Address is the host and port of the destination if Service is nil.
	Address string
	// CABundle holds the trusted CAs in PEM. An empty bundle means the system's CAs.
	CABundle []byte
	// Timeout limits a request including its response, or up to the response header if the response is a stream.
	// 0 means that only the request's context limits it.
	Timeout time.Duration
	// MaxBytes limits the size of a response. The circuit breaker then counts only complete responses as successes.
	// 0 means that the response is a stream, and its header counts as a success.
	MaxBytes int64
	// Replayable declares that sending a request twice is harmless. A request whose connection fails is then retried
	// once.
	Replayable bool
	// Disconnected is called when a connection breaks. It must not block. nil means no callback.
	Disconnected func()
	// EndpointOf is the Service that has Address as an endpoint. Its host name is then required in the certificate.
	// nil means that Address does not belong to a Service.
	EndpointOf *Service
	// Insecure accepts any certificate.
	Insecure bool
	// Certificate returns the client certificate for a handshake. nil means no client certificate.
	Certificate func() (*tls.Certificate, error)
	// Rotations returns how often Certificate has changed. After each change, requests use new connections. It is
	// called for each request. nil means that Certificate never changes.
	Rotations func() uint64
	// Wrap returns a RoundTripper that adds credentials to request headers and sends the requests with the
	// Transport. Only the client that Transport.Client returns uses it. nil adds no credentials.
	Wrap func(*Transport) (http.RoundTripper, error)
	// PingEvery is how long an HTTP/2 connection to Address may be silent before it is pinged. It is also the timeout
	// of the ping. 0 means pingTimeout.
	PingEvery time.Duration
	// ClientTimeouts declares that clients choose their timeouts and cancel requests at any time. The circuit breaker
	// then counts only failures to connect.
	ClientTimeouts bool
	// Upgrades sends each request over HTTP/1.1 on a separate connection, which the response may upgrade to a stream.
	Upgrades bool

	override http.RoundTripper // if not nil, handles the requests in place of the destination
}

// Transport sends requests to one destination. It has a circuit breaker, enforces limits and counts requests. It does
// not follow redirects, and removes the Location header so that clients do not either. It opens new connections when
// the endpoints of its Service have changed.
type Transport struct {
	options    Options
	host       string // of the destination, with the port
	metrics    *Metrics
	generation func() uint64
	template   *http.Transport // cloned for each pool
	pool       atomic.Pointer[pool]
	breaker    breaker
	client     http.Client
}

// NewTransport returns a Transport that the caller must close. It returns an error if the options are invalid.
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
		t.template.DialContext = func(ctx context.Context, _, _ string) (net.Conn,
			error) {
			return d.DialService(ctx, *s)
		}
		if d.Generation != nil {
			t.generation = d.Generation(s.Namespace, s.Name)
		}
	} else {
		t.toAddress(d)
	}
	if o.Certificate != nil {
		t.template.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate,
			error) {
			return o.Certificate()
		}
	}
	if endpoints := t.generation; o.Rotations != nil {
		t.generation = func() uint64 { return endpoints() + o.Rotations() } // the sum grows when either number grows
	}
	if t.client.Transport = t; o.Wrap != nil {
		if t.client.Transport, err = o.Wrap(t); err != nil {
			return nil, err
		}
	}
	t.host = strings.ToValidUTF8(t.host, "\ufffd") // metrics require UTF-8, and the host of a URL may be any bytes
	if o.MaxBytes == 0 {
		t.template.ResponseHeaderTimeout = o.Timeout
	}
	t.breaker.reset()
	t.pool.Store(newPool(t.template, t.generation(), o.Disconnected))
	t.metrics.add(t)
	return t, nil
}

// toAddress configures the template for connections to a host and port.
func (t *Transport) toAddress(d *Dialer) {
	o, template := &t.options, t.template
	template.DialContext, template.Proxy = d.DialContext, d.Proxy
	template.TLSClientConfig.InsecureSkipVerify = o.Insecure
	if s := o.EndpointOf; s != nil {
		template.TLSClientConfig.ServerName, template.Proxy = s.serverName(), nil
		template.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			return d.DialEndpoint(ctx, *s, network, address)
		}
	}
	ping := cmp.Or(o.PingEvery, pingTimeout)
	template.ForceAttemptHTTP2, template.DisableKeepAlives = !o.Upgrades, o.Upgrades
	template.HTTP2 = &http.HTTP2Config{
		SendPingTimeout:           ping,
		PingTimeout:               ping,
		MaxReceiveBufferPerStream: streamBuffer,
		MaxEncoderHeaderTableSize: headerTable,
	}
}

// certPool returns the certificates of a PEM bundle. It returns nil for an empty bundle, which means the system's
// certificates.
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

// Client returns a client that uses the Transport with the credentials of Options.Wrap.
func (t *Transport) Client() *http.Client { return &t.client }

// Close closes idle connections. Requests in flight continue.
func (t *Transport) Close() {
	t.pool.Load().retire()
	t.metrics.remove(t)
}

// Generation returns the generation of the endpoints that the next request may use.
func (t *Transport) Generation() uint64 { return t.generation() }

// currentPool returns the pool for the current endpoints. If the endpoints have changed, it creates a new pool.
func (t *Transport) currentPool() *pool {
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

// roundTripper returns the RoundTripper that sends the next request.
func (t *Transport) roundTripper() http.RoundTripper {
	if t.options.override != nil {
		return t.options.override
	}
	return t.currentPool()
}

// Err returns the error with which requests fail while the circuit breaker is open or half-open. It returns nil
// while the circuit breaker is closed.
func (t *Transport) Err() error { return t.breaker.err() }

// HalfOpen records that the destination was unreachable before this Transport was created. A successful Probe then
// reports that the destination has recovered. The first failed request opens the circuit breaker, because the
// destination may accept connections without responding.
func (t *Transport) HalfOpen() {
	t.breaker.unreachable.Store(true)
	t.breaker.tripOnFirst.Store(true)
}

// Probe opens a connection, completes the TLS handshake and closes it, without sending a request. recovered reports
// whether the destination accepts connections again after it was unreachable. Probe closes the circuit breaker in that
// case. If the destination accepted connections all along but did not respond, only requests can close the circuit
// breaker.
func (t *Transport) Probe(ctx context.Context) (recovered bool) {
	ctx, cancel := context.WithTimeout(ctx, openFor)
	defer cancel()
	return t.breaker.probed(t.Handshake(ctx))
}

// Handshake opens a connection, completes the TLS handshake and closes it, without sending a request.
func (t *Transport) Handshake(ctx context.Context) error {
	if t.options.override != nil {
		return nil
	}
	conn, err := t.currentPool().NewClientConn(ctx, "https", t.host)
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
	if err != nil && t.options.Replayable && req.Context().Err() == nil && retryable(err) {
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

// replay returns a copy of the request to send again. It reports false if the body cannot be read again.
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

// retryable reports whether the request may succeed on another connection. It returns false for a timeout or an
// invalid certificate.
func retryable(err error) bool {
	var network net.Error
	var certificate *tls.CertificateVerificationError
	return !(errors.As(err, &network) && network.Timeout()) && !errors.As(err, &certificate)
}
