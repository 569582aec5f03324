package api

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/api/request"
)

// loopback is a transport that calls the server without a network connection. Each request runs in its own
// goroutine. The goroutine ends when the caller closes the body of the response or cancels the context.
type loopback struct {
	server http.Handler
	user   user.Info
}

// RoundTrip implements http.RoundTripper.
func (l *loopback) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := context.WithValue(access.WithUser(r.Context(), l.user), request.InProcess{}, true)
	ctx, cancel := context.WithCancel(ctx)
	in := r.WithContext(ctx)
	in.Header = r.Header.Clone()
	if in.Body == nil {
		in.Body = http.NoBody
	}
	in.RequestURI, in.RemoteAddr = r.URL.RequestURI(), "127.0.0.1:0"
	body, sink := io.Pipe()
	w := &loopbackWriter{header: http.Header{}, body: sink, started: make(chan struct{})}
	go func() {
		defer cancel()
		defer w.end()
		defer in.Body.Close()
		defer func() {
			if p := recover(); p != nil { // net/http would close the connection
				_ = sink.CloseWithError(io.ErrUnexpectedEOF)
			}
		}()
		l.server.ServeHTTP(w, in)
	}()
	select {
	case <-w.started:
	case <-ctx.Done():
		_ = body.CloseWithError(ctx.Err())
		if err := r.Context().Err(); err != nil {
			return nil, err
		}
		<-w.started // the handler has returned, so the response has started
	}
	// A canceled context must unblock a handler that is writing.
	stop := context.AfterFunc(ctx, func() { _ = sink.CloseWithError(context.Cause(ctx)) })
	return &http.Response{
		Status:        strconv.Itoa(w.status) + " " + http.StatusText(w.status),
		StatusCode:    w.status,
		Proto:         "HTTP/2.0",
		ProtoMajor:    2,
		Header:        w.sent,
		Body:          &loopbackBody{body, cancel, stop},
		ContentLength: -1,
		Request:       r,
	}, nil
}

// loopbackBody is the body of a response. Close ends the request.
type loopbackBody struct {
	*io.PipeReader
	cancel context.CancelFunc
	stop   func() bool
}

// Close implements io.Closer.
func (b *loopbackBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// loopbackWriter implements http.ResponseWriter without a network connection.
type loopbackWriter struct {
	header  http.Header
	body    *io.PipeWriter
	once    sync.Once
	started chan struct{} // closed after the fields status and sent are set
	status  int
	sent    http.Header
}

// Header implements http.ResponseWriter.
func (w *loopbackWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *loopbackWriter) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.started)
	})
}

// Write implements http.ResponseWriter.
func (w *loopbackWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// Flush implements http.Flusher. Write does not buffer, so Flush only starts the response.
func (w *loopbackWriter) Flush() { w.WriteHeader(http.StatusOK) }

func (w *loopbackWriter) end() {
	w.WriteHeader(http.StatusOK)
	_ = w.body.Close() // never fails
}
