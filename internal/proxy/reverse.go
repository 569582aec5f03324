// Package proxy forwards what is not for this server to another one, and takes out of it what is none of that one's business. It knows
// neither who may ask nor what is asked for.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Reverse passes a request on to another API server, once rewrite has changed it, and its answer back, whose headers ours are. The answer
// may be a stream, which lasts.
func Reverse(ours http.Header, to http.RoundTripper, stream bool, rewrite func(*httputil.ProxyRequest)) httputil.ReverseProxy {
	p := httputil.ReverseProxy{
		Transport: to, Rewrite: rewrite, BufferPool: &large, ErrorHandler: fail, ModifyResponse: settle(ours), ErrorLog: quiet,
		FlushInterval: flushAfter,
	}
	if stream {
		p.BufferPool = &small
	}
	return p
}

// flushAfter is how long a piece of an answer of a known length waits for more; others go out at once.
const flushAfter = 200 * time.Millisecond

// settle decides about what an answer says: ours are headers that it has already, which the backend's replace, and a redirect would
// have a client of this server follow whom this server trusts (CVE-2022-3172).
func settle(ours http.Header) func(*http.Response) error {
	id, control := ours["Audit-Id"], ours["Cache-Control"]
	return func(resp *http.Response) error {
		switch resp.StatusCode {
		case http.StatusSwitchingProtocols:
			if asked := resp.Request.Header.Get("Upgrade"); !strings.EqualFold(asked, resp.Header.Get("Upgrade")) {
				return fmt.Errorf("the backend turned the connection to %q, not to %q", resp.Header.Get("Upgrade"), asked) // which closes it
			}
		case http.StatusMultipleChoices, http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
			const message = "the backend attempted to redirect this request, which is not permitted"
			_ = resp.Body.Close()
			resp.StatusCode, resp.Header, resp.Body = http.StatusBadGateway, http.Header{}, io.NopCloser(strings.NewReader(message))
			resp.ContentLength = int64(len(message))
		}
		delete(resp.Header, "Audit-Id")
		ours["Audit-Id"], ours["Cache-Control"] = id, control // an answer before the answer has taken them away
		if resp.Header["Cache-Control"] != nil {
			delete(ours, "Cache-Control")
		}
		return nil
	}
}

// fail answers where no answer has come.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(context.Cause(r.Context()), context.DeadlineExceeded): // which err does not say over HTTP/2
		http.Error(w, "the API server that serves this did not answer within the allotted time", http.StatusGatewayTimeout)
	default:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// IsUpgrade reports whether a request asks for an upgrade of its connection. Nothing but the answer can grant it.
func IsUpgrade(r *http.Request) bool {
	return httpguts.HeaderValuesContainsToken(r.Header["Connection"], "Upgrade")
}

// logged has httputil tell what an answer that breaks off means for the client: nothing that an operator has to know.
type logged struct{}

var quiet = log.New(logged{}, "", 0)

// Write implements io.Writer.
func (logged) Write(p []byte) (int, error) {
	slog.Debug("proxy to an API server", "message", strings.TrimSpace(string(p)))
	return len(p), nil
}

// buffers are those that answers are copied through: large ones, and small ones for what lasts.
type buffers struct {
	size int
	pool sync.Pool
}

var large, small = buffers{size: 32 << 10}, buffers{size: 4 << 10}

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, b.size)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
