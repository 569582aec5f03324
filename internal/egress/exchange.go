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

// minTimeout is the shortest deadline whose expiry counts as a failure of the destination. A client chooses its own
// deadline and must not be able to open the circuit breaker for other clients with a short one.
const minTimeout = time.Second

// errClosed ends an exchange whose response body the caller closed early.
var errClosed = errors.New("response body closed before its end")

// errSwitched is the error for a destination that switches protocols without an Upgrade header in the request.
var errSwitched = errors.New("unexpected response 101 Switching Protocols to a request without an Upgrade header")

// ErrTooLarge is wrapped by the error of reading a response that is larger than Options.MaxBytes.
var ErrTooLarge = errors.New("the response body is larger than")

// exchange is a request in flight, and the body of its response until that ends.
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
	once      sync.Once                  // guards the end of the exchange
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
		_ = resp.Body.Close() // the body is the raw connection, to which no limit applies
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
	case upgraded: // the caller owns the connection from here on
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
		p = p[:x.remaining+1] // one byte more reveals a response that is too large
	}
	n, err := x.ReadCloser.Read(p)
	if x.remaining -= int64(n); limit > 0 && x.remaining < 0 {
		n, x.remaining, err = n-1, 0, fmt.Errorf("%w %d bytes", ErrTooLarge, limit)
	}
	if err == io.EOF && x.parent.Err() != nil {
		// A destination may end its response regularly when the request is canceled. The response is incomplete then.
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

// end ends the exchange once. err is nil if it succeeded.
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

// hasAnswered reports whether err means that the destination responded and this side stopped reading.
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
