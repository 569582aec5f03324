package proxy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"testing"
	"time"
)

// transportFunc is a RoundTripper.
type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestResponseAfterDeadline checks that a response of the backend after the deadline is rejected with 504. The
// transport of net/http may return such a response. At the deadline it closes the connection, and a backend that
// notices this may respond before the connection is completely closed.
func TestResponseAfterDeadline(t *testing.T) {
	transport := transportFunc(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	withCause, cancelCause := context.WithCancelCause(t.Context()) // the context of an upgrade request
	cancelCause(context.DeadlineExceeded)
	for _, ctx := range []context.Context{ctx, withCause} {
		w := httptest.NewRecorder()
		p := Reverse(w.Header(), transport, false, func(p *httputil.ProxyRequest) { p.Out.URL.Host = "backend" })
		p.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
		if w.Code != http.StatusGatewayTimeout || !strings.Contains(w.Body.String(), "within the allotted time") {
			t.Errorf("got %d %q, want 504", w.Code, w.Body)
		}
	}
}
