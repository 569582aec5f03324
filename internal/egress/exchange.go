package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// minTimeout is the shortest deadline whose expiry counts as a failure of the destination. Clients choose their
// own deadlines. A short deadline must not open the circuit breaker for other clients.
const minTimeout = time.Second

// errClosed ends an exchange whose response body the caller closed early.
var errClosed = errors.New("response body closed before its end")

// errSwitched is the error for a destination that switches protocols without an Upgrade header in the request.
var errSwitched = errors.New("unexpected response 101 Switching Protocols to a request without an Upgrade header")

// ErrTooLarge is wrapped by the error that reading a response returns if the response is larger than
// Options.MaxBytes.
var ErrTooLarge = errors.New("the response body is larger than")

// exchange is a request in flight. It is also the body of the response, and ends with it.
type exchange struct {
	io.ReadCloser
	transport *Transport
	parent    context.Context // the request's context
	ctx       context.Context // parent, limited by Options.Timeout
	cancel    context.CancelFunc
	began     time.Time
	done      func(error)                // reports the outcome to the circuit breaker
	conn      atomic.Pointer[connection] // nil before there is a connection
	remaining int64                      // bytes of Options.MaxBytes that may still be read
	once      sync.Once                  // ends the exchange only once
}

func newExchange(t *Transport, req *http.Request, done func(error)) *exchange {
	x := &exchange{transport: t, parent: req.Context(), began: time.Now(), done: done, remaining: t.options.MaxBytes}
	x.ctx, x.cancel = x.parent, func() {}
	if limit := t.options.Timeout; limit > 0 && t.options.MaxBytes > 0 {
		x.ctx, x.cancel = context.WithTimeout(x.parent, limit)
	}
	return x
}

// send sends the request and records the connection that it uses.
func (x *exchange) send(req *http.Request) (*http.Response, error) {
	use := func(next *connection) {
		if previous := x.conn.Swap(next); previous != nil {
			previous.end(false) // http.Transport retries on another connection when the previous one broke
		}
	}
	use(nil)
	trace := &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) { use(beginRequest(got.Conn)) }}
	resp, err := x.transport.roundTripper().RoundTrip(req.WithContext(httptrace.WithClientTrace(x.ctx, trace)))
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols && req.Header.Get("Upgrade") == "" {
		_ = resp.Body.Close() // this body is the raw connection, which has no size limit
		return nil, errSwitched
	}
	return resp, err
}

// answer returns the response. The end of its body ends the exchange.
func (x *exchange) answer(resp *http.Response) *http.Response {
	if conn := x.conn.Load(); conn != nil {
		conn.responded(resp)
	}
	if resp.StatusCode/100 == 3 {
		resp.Header.Del("Location") // so that no client follows the redirect
	}
	upgraded := resp.StatusCode == http.StatusSwitchingProtocols
	if x.remaining == 0 || upgraded { // a stream
		x.report(nil)
	}
	switch {
	case upgraded: // the caller now owns the connection
	case resp.Body == http.NoBody:
		x.end(nil)
	default:
		x.ReadCloser, resp.Body = resp.Body, x
	}
	return resp
}

// Read implements io.Reader.
func (x *exchange) Read(p []byte) (int, error) {
	limit := x.transport.options.MaxBytes
	if limit > 0 && int64(len(p)) > x.remaining {
		p = p[:x.remaining+1] // one more byte shows that the response is too large
	}
	n, err := x.ReadCloser.Read(p)
	if x.remaining -= int64(n); limit > 0 && x.remaining < 0 {
		n, x.remaining, err = n-1, 0, fmt.Errorf("%w %d bytes", ErrTooLarge, limit)
	}
	if err == io.EOF && x.parent.Err() != nil {
		// If the request is canceled, a destination may end an incomplete response without an error.
		err = context.Cause(x.parent)
	}
	switch {
	case err == io.EOF:
		x.end(nil)
	case err != nil:
		x.end(err)
	}
	return n, err
}

// Close implements io.Closer. It abandons a response that has not been read to its end.
func (x *exchange) Close() error {
	x.end(errClosed)
	return x.ReadCloser.Close()
}

// end ends the exchange once. err is nil if the request succeeded.
func (x *exchange) end(err error) {
	x.once.Do(func() {
		if conn := x.conn.Load(); conn != nil {
			conn.end(err != nil && (x.ctx.Err() != nil || hasAnswered(err) || !retryable(err)))
		}
		if x.done != nil {
			x.report(err)
		}
		x.cancel()
	})
}

// hasAnswered reports whether err means that this side stopped reading a response. The destination has then
// responded.
func hasAnswered(err error) bool { return errors.Is(err, errClosed) || errors.Is(err, ErrTooLarge) }

// report reports the outcome to the circuit breaker, once. Any response counts as a success, whatever its status.
func (x *exchange) report(err error) {
	breaker, ended := &x.transport.breaker, context.Cause(x.parent)
	switch {
	case err != nil && x.transport.options.ClientTimeouts && (ended != nil || x.conn.Load() != nil):
		x.done(errExcluded)
	case err != nil && (errors.Is(ended, context.Canceled) || ended != nil && time.Since(x.began) < minTimeout):
		x.done(errExcluded)
	case err == nil, hasAnswered(err):
		breaker.succeeded(x.done)
	default:
		breaker.failed(x.done, err, x.conn.Load() != nil)
	}
	x.done = nil
}
