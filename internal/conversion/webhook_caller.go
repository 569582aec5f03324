package conversion

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The review versions that this server speaks.
const (
	reviewV1      = "v1"
	reviewV1beta1 = "v1beta1"
)

// caller calls the webhook of one configuration.
type caller struct {
	webhooks  *Webhooks
	config    *WebhookConfig
	text      string // the configuration
	review    string // "v1" or "v1beta1"; "" if the webhook speaks neither
	url       string
	address   string // host and port of url
	service   *apiextensionsv1.ServiceReference
	timeout   time.Duration   // of a call
	transport *http.Transport // how connections are made
	dial      func(ctx context.Context, network, address string) (net.Conn, error)
	line      atomic.Pointer[line]
	breaker   breaker

	// guarded by Webhooks.mu
	used   time.Time
	behind uint64 // who the line leads to, as WebhookConfig.Behind has it
}

// newCaller reads the JSON of spec.conversion.webhook. It trusts that a CRD says nothing that the API refuses.
func newCaller(text string, w *Webhooks) (*caller, error) {
	var c apiextensionsv1.WebhookConversion
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return nil, fmt.Errorf("spec.conversion.webhook: %w", err)
	}
	if c.ClientConfig == nil || c.ClientConfig.Service == nil && c.ClientConfig.URL == nil {
		return nil, errors.New("webhook configuration must have either service or URL")
	}
	config := &w.config
	out := &caller{webhooks: w, config: config, text: text, timeout: min(callTimeout, config.Timeout), dial: config.Dial}
	out.breaker.say = func(crd string, err error) { w.said.say(&out.breaker, crd, err) }
	out.breaker.search = func() { go out.probe(w.ended) }
	if i := slices.IndexFunc(c.ConversionReviewVersions, speaks); i >= 0 {
		out.review = c.ConversionReviewVersions[i]
	}
	roots, err := roots(c.ClientConfig.CABundle)
	if err != nil {
		return nil, err
	}
	out.transport = &http.Transport{
		TLSClientConfig:       &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   10 * time.Second,
		MaxIdleConnsPerHost:   25,
		IdleConnTimeout:       idleTimeout,
		ExpectContinueTimeout: time.Second,
	}
	if s := c.ClientConfig.Service; s != nil {
		out.byService(s)
	} else {
		out.url, out.transport.Proxy = *c.ClientConfig.URL, config.Proxy
		out.transport.ForceAttemptHTTP2 = true
		out.transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second}
	}
	if out.url, out.address, err = withTimeout(out.url, out.timeout); err != nil {
		return nil, err
	}
	out.behind = out.now()
	out.line.Store(out.newLine())
	return out, nil
}

func speaks(version string) bool { return version == reviewV1 || version == reviewV1beta1 }

// withTimeout tells the webhook how long it is waited for, as upstream does. address is where it listens.
func withTimeout(text string, timeout time.Duration) (out, address string, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", "", fmt.Errorf("the webhook's address: %w", err)
	}
	if u.Path == "" {
		u.Path = "/"
	}
	u.RawQuery, u.Fragment = "timeout="+timeout.String(), ""
	return u.String(), net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")), nil
}

// roots are the CAs of a caBundle; nil, the system's, where there is nothing in it.
func roots(bundle []byte) (*x509.CertPool, error) {
	if len(bytes.TrimSpace(bundle)) == 0 {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, errors.New("unable to load root certificates: unable to parse bytes as PEM block")
	}
	return pool, nil
}

// byService has the Service found for each connection; TLS is for the host of the URL. Such connections speak
// HTTP/1.1, so that several are opened and the calls spread over what stands behind the Service (https://issue.k8s.io/75791).
func (c *caller) byService(s *apiextensionsv1.ServiceReference) {
	c.service = s
	port, path := int32(443), "/"
	if s.Port != nil && *s.Port != 0 {
		port = *s.Port
	}
	if s.Path != nil && *s.Path != "" {
		path = "/" + strings.TrimPrefix(*s.Path, "/")
	}
	name := s.Name + "." + s.Namespace + ".svc"
	c.url = "https://" + net.JoinHostPort(name, strconv.Itoa(int(port))) + path
	dial, resolve := c.config.Dial, c.config.Resolve
	c.dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		if resolve == nil {
			return nil, fmt.Errorf("this server finds no Services, and so not %s/%s", s.Namespace, s.Name)
		}
		address, err := resolve(ctx, s.Namespace, s.Name, port)
		if err != nil {
			return nil, err
		}
		return dial(ctx, network, address)
	}
}

// now says who stands behind the webhook's Service, as WebhookConfig.Behind has it.
func (c *caller) now() uint64 {
	if c.service == nil {
		return 0
	}
	return c.config.Behind(c.service.Namespace, c.service.Name)
}

// post sends a body and returns the answer's. A connection that was refused or broke before anything was replied is
// tried once more: converting twice does no harm. how says how far it came.
func (c *caller) post(ctx context.Context, body []byte) (answer []byte, how contact, err error) {
	resp, on, err := c.send(ctx, body)
	if err != nil && ctx.Err() == nil && worthAnother(err) {
		resp, on, err = c.send(ctx, body)
	}
	switch {
	case err != nil && on == nil:
		return nil, nowhere, err
	case err != nil:
		return nil, connected, err
	}
	defer resp.Body.Close()
	answer, err = readAll(resp)
	on.leave(givenUp(ctx, err))
	switch {
	case errors.Is(err, errTooLarge):
		return nil, replied, err
	case err != nil:
		return nil, connected, err
	case resp.StatusCode != http.StatusOK:
		return nil, replied, refusal(resp, answer)
	case len(answer) == 0:
		return nil, replied, fmt.Errorf("0-length response with status code: %d and content type: %s", resp.StatusCode, contentType(resp))
	}
	return answer, replied, nil
}

// worthAnother says that an error may be one of this connection alone. A time-out is not, nor is a certificate.
func worthAnother(err error) bool {
	var network net.Error
	var certificate *tls.CertificateVerificationError
	return !(errors.As(err, &network) && network.Timeout()) && !errors.As(err, &certificate)
}

// contact is how far a call came.
type contact int

const (
	nowhere   contact = iota // no connection, or none whose TLS is right
	connected                // but no answer, or half of one
	replied                  // whatever the answer is
)

// send sends a body, and returns on which connection, if there was one; there the call goes on until the response is read.
func (c *caller) send(ctx context.Context, body []byte) (*http.Response, *connection, error) {
	var on atomic.Pointer[connection]
	trace := &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if before := on.Swap(take(got.Conn)); before != nil {
			before.leave(false) // it broke, and nothing had been sent
		}
	}}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, */*")
	req.Header.Set("User-Agent", "trellis")
	resp, err := c.line.Load().client.Do(req)
	conn := on.Load()
	switch {
	case conn == nil:
	case err != nil:
		conn.leave(givenUp(ctx, err))
	default:
		conn.replied(resp)
	}
	return resp, conn, err
}

// givenUp says that it was this side that ended a call.
func givenUp(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, errTooLarge) || !worthAnother(err))
}

func contentType(resp *http.Response) string {
	if t := resp.Header.Get("Content-Type"); t != "" {
		return t
	}
	return "application/json"
}

var errTooLarge = fmt.Errorf("the response body is larger than %d bytes", maxAnswerBytes)

// readAll reads a body that may be so large.
func readAll(resp *http.Response) ([]byte, error) {
	var into bytes.Buffer
	if n := resp.ContentLength; n > 0 && n <= maxAnswerBytes {
		into.Grow(int(n) + bytes.MinRead)
	}
	n, err := into.ReadFrom(io.LimitReader(resp.Body, maxAnswerBytes+1))
	if err != nil {
		return nil, fmt.Errorf("unexpected error when reading response body. Please retry. Original error: %w", err)
	}
	if n > maxAnswerBytes {
		return nil, errTooLarge
	}
	return into.Bytes(), nil
}

// refusal words an answer that is not a 200 as upstream's client does: by the Status in it, or else by its code.
func refusal(resp *http.Response, body []byte) error {
	var status apierrors.StatusError
	if err := json.Unmarshal(body, &status.ErrStatus); err == nil && status.ErrStatus.Kind == "Status" && status.ErrStatus.Message != "" {
		return &status
	}
	const most = 2048
	message := "unknown"
	if t := resp.Header.Get("Content-Type"); t == "" || strings.HasPrefix(t, "text/") {
		message = strings.TrimSpace(string(body[:min(len(body), most)]))
	}
	return apierrors.NewGenericServerResponse(resp.StatusCode, http.MethodPost, schema.GroupResource{}, "", message, 0, true)
}
