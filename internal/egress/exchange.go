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

// minWait is how long a request waits at least for its end to say something of the destination. Who asks chooses when it
// ends, and should not decide with that whether others are answered.
const minWait = time.Second

// errClosed ends an answer whose reader wants no more of it.
var errClosed = errors.New("closed before its end")

// errSwitched is that of a destination which turns the connection of a plain request into another protocol's.
var errSwitched = errors.New("the answer is 101 Switching Protocols, which was not asked for")

// ErrTooLarge is in the error of reading an answer that is larger than Options.MaxBytes.
var ErrTooLarge = errors.New("the response body is larger than")

// exchange is a request under way, and the body of its answer up to the end of that.
type exchange struct {
	io.ReadCloser
	transport *Transport
	asked     context.Context // the request's own
	bounded   context.Context // the same within Options.Timeout
	cancel    context.CancelFunc
	began     time.Time
	done      func(error)                // tells the circuit breaker
	on        atomic.Pointer[connection] // nil: there is none yet
	left      int64                      // of Options.MaxBytes
	once      sync.Once                  // it ends
}

func newExchange(t *Transport, req *http.Request, done func(error)) *exchange {
	x := &exchange{transport: t, asked: req.Context(), began: time.Now(), done: done, left: t.options.MaxBytes}
	x.bounded, x.cancel = x.asked, func() {}
	if limit := t.options.Timeout; limit > 0 && t.options.MaxBytes > 0 {
		x.bounded, x.cancel = context.WithTimeout(x.asked, limit)
	}
	return x
}

// send sends the request.
func (x *exchange) send(req *http.Request) (*http.Response, error) {
	move := func(to *connection) {
		if before := x.on.Swap(to); before != nil {
			before.leave(false) // it broke
		}
	}
	move(nil)
	trace := &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) { move(take(got.Conn)) }}
	resp, err := x.transport.sender().RoundTrip(req.WithContext(httptrace.WithClientTrace(x.bounded, trace)))
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols && req.Header.Get("Upgrade") == "" {
		_ = resp.Body.Close() // the bare connection, which no limit holds
		return nil, errSwitched
	}
	return resp, err
}

// answer returns the response, whose body ends the exchange.
func (x *exchange) answer(resp *http.Response) *http.Response {
	if on := x.on.Load(); on != nil {
		on.replied(resp)
	}
	if resp.StatusCode/100 == 3 {
		resp.Header.Del("Location") // without which a client takes it as the answer
	}
	upgraded := resp.StatusCode == http.StatusSwitchingProtocols
	if x.left == 0 || upgraded { // a stream
		x.judge(nil)
	}
	switch {
	case upgraded: // the connection is the caller's from here on
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
	if limit > 0 && int64(len(p)) > x.left {
		p = p[:x.left+1] // one more shows that there is more
	}
	n, err := x.ReadCloser.Read(p)
	if x.left -= int64(n); limit > 0 && x.left < 0 {
		n, x.left, err = n-1, 0, fmt.Errorf("%w %d bytes", ErrTooLarge, limit)
	}
	if err == io.EOF && x.asked.Err() != nil {
		err = context.Cause(x.asked) // a destination may end its answer in order when the request is canceled: it is not whole
	}
	switch {
	case err == io.EOF:
		x.end(nil)
	case err != nil:
		x.end(err)
	}
	return n, err
}

// Close implements io.Closer. Before the end of the answer it gives that up.
func (x *exchange) Close() error {
	x.end(errClosed)
	return x.ReadCloser.Close()
}

// end notes that the exchange is over, by err or well.
func (x *exchange) end(err error) {
	x.once.Do(func() {
		if on := x.on.Load(); on != nil {
			on.leave(err != nil && (x.bounded.Err() != nil || hasAnswered(err) || !worthAnother(err)))
		}
		if x.done != nil {
			x.judge(err)
		}
		x.cancel()
	})
}

// hasAnswered says that the destination has, and that it was this side that wanted no more.
func hasAnswered(err error) bool { return errors.Is(err, errClosed) || errors.Is(err, ErrTooLarge) }

// judge tells the circuit breaker, once, how the exchange has gone. What the answer says does not matter, as long as there
// is one.
func (x *exchange) judge(err error) {
	breaker, ended := &x.transport.breaker, context.Cause(x.asked)
	switch {
	case err != nil && x.transport.options.ClientTimeouts && (ended != nil || x.on.Load() != nil):
		x.done(errNoVerdict)
	case err != nil && (errors.Is(ended, context.Canceled) || ended != nil && time.Since(x.began) < minWait):
		x.done(errNoVerdict)
	case err == nil, hasAnswered(err):
		breaker.succeeded(x.done)
	default:
		breaker.failed(x.done, err, x.on.Load() != nil)
	}
	x.done = nil
}
