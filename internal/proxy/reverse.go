// Package proxy forwards requests to other servers and removes the client's credentials from them. It must not depend
// on authorization or on the kinds of requested objects.
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

// Reverse returns a proxy to another API server. rewrite changes the request. responseHeader is the header of this
// server's response. The proxy adds the backend's headers to it. stream selects small copy buffers for a response that
// may take long.
func Reverse(
	responseHeader http.Header,
	transport http.RoundTripper,
	stream bool,
	rewrite func(*httputil.ProxyRequest),
) httputil.ReverseProxy {
	p := httputil.ReverseProxy{
		Transport: transport, Rewrite: rewrite, BufferPool: &large, ErrorHandler: fail,
		ModifyResponse: modifyResponse(responseHeader), ErrorLog: quiet,
		FlushInterval: flushAfter,
	}
	if stream {
		p.BufferPool = &small
	}
	return p
}

// flushAfter is the flush interval for responses of a known length. Other responses are flushed immediately.
const flushAfter = 200 * time.Millisecond

// modifyResponse returns a function that prepares the backend's response. It rejects a response after the deadline,
// because the backend may only have noticed that the transport closes the connection. It also rejects redirects,
// because they could lead a client of this server to any other server (CVE-2022-3172). The backend's Cache-Control
// header replaces the one in responseHeader. The backend's Audit-Id header is removed.
func modifyResponse(responseHeader http.Header) func(*http.Response) error {
	id, control := responseHeader["Audit-Id"], responseHeader["Cache-Control"]
	return func(resp *http.Response) error {
		if err := context.Cause(resp.Request.Context()); err != nil {
			return err
		}
		switch resp.StatusCode {
		case http.StatusSwitchingProtocols:
			want, got := resp.Request.Header.Get("Upgrade"), resp.Header.Get("Upgrade")
			if !strings.EqualFold(want, got) { // the error closes the connection
				return fmt.Errorf("the backend switched to protocol %q instead of %q", got, want)
			}
		case http.StatusMultipleChoices, http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
			http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
			const message = "the backend attempted to redirect this request, which is not permitted"
			_ = resp.Body.Close()
			resp.StatusCode, resp.Header, resp.Body = http.StatusBadGateway, http.Header{},
				io.NopCloser(strings.NewReader(message))
			resp.ContentLength = int64(len(message))
		}
		delete(resp.Header, "Audit-Id")
		// An informational response (1xx) may have removed these headers.
		responseHeader["Audit-Id"], responseHeader["Cache-Control"] = id, control
		if resp.Header["Cache-Control"] != nil {
			delete(responseHeader, "Cache-Control")
		}
		return nil
	}
}

// fail writes the response to a request that the backend has not answered.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(context.Cause(r.Context()), context.DeadlineExceeded): // err does not wrap it over HTTP/2
		http.Error(w, "the backend API server did not respond within the allotted time", http.StatusGatewayTimeout)
	default:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// IsUpgrade reports whether a client requests an upgrade of its connection. The upgrade takes place only if the server
// grants it in its response.
func IsUpgrade(r *http.Request) bool {
	return httpguts.HeaderValuesContainsToken(r.Header["Connection"], "Upgrade")
}

// logged writes the messages of httputil to the debug log. They are about responses that broke off, which are not
// relevant to an operator.
type logged struct{}

var quiet = log.New(logged{}, "", 0)

// Write implements io.Writer.
func (logged) Write(p []byte) (int, error) {
	slog.Debug("proxy to an API server", "message", strings.TrimSpace(string(p)))
	return len(p), nil
}

// buffers is a pool of buffers for copying responses: large ones, and small ones for streams.
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
