package api

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
)

// fence replaces the response of a server that other servers no longer wait for. Its kinds and roles may be outdated,
// so the client gets a 503 and can retry with another server. A response that has already begun is cut off.
type fence struct {
	http.ResponseWriter
	valid   func() error
	began   bool // WriteHeader was called
	refused bool // the response is the 503
	opened  bool // Open was called
}

// Open lets the rest of the response pass. It must contain no data.
func (f *fence) Open() { f.opened = true }

// Check returns an error if no response may pass. A watch calls it after Hijack.
func (f *fence) Check() error {
	if f.opened {
		return nil
	}
	return f.valid()
}

// errFenced ends a response that has begun.
var errFenced = errors.New("the server is no longer valid")

// isFenced reports whether a server without a valid registration refuses requests for a path. Operators need its health
// checks and metrics, which contain no objects, and its version never changes.
func isFenced(path string) bool {
	for _, open := range []string{"/healthz", "/livez", "/readyz", "/metrics", "/version"} {
		if path == open || strings.HasPrefix(path, open+"/") {
			return false
		}
	}
	return true
}

// WriteHeader implements http.ResponseWriter.
func (f *fence) WriteHeader(status int) {
	err := error(nil)
	if !f.began {
		err = f.Check()
	}
	if err == nil {
		f.began = true
		f.ResponseWriter.WriteHeader(status)
		return
	}
	f.began, f.refused = true, true
	s := encoding.StatusOf(verb.Invalid(err))
	s.TypeMeta = encoding.StatusType
	body, err := (&encoding.Media{Offer: encoding.Offer{Format: encoding.FormatJSON}}).EncodeStatus(s)
	if err != nil {
		body = nil // not possible: a Status has a JSON form
	}
	h := f.Header()
	clear(h)
	h.Set("Content-Type", runtime.ContentTypeJSON)
	h.Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	f.ResponseWriter.WriteHeader(int(s.Code))
	_, _ = f.ResponseWriter.Write(body) // an error means that the client has disconnected
}

// Write implements http.ResponseWriter.
func (f *fence) Write(p []byte) (int, error) {
	if !f.began {
		f.WriteHeader(http.StatusOK)
	}
	if f.refused || f.Check() != nil {
		return 0, errFenced
	}
	return f.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (f *fence) Flush() { _ = http.NewResponseController(f.ResponseWriter).Flush() }

// Hijack implements http.Hijacker.
func (f *fence) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if err := f.Check(); err != nil {
		return nil, nil, err
	}
	return http.NewResponseController(f.ResponseWriter).Hijack()
}

// Unwrap returns the wrapped writer to http.ResponseController.
func (f *fence) Unwrap() http.ResponseWriter { return f.ResponseWriter }
