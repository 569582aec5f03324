package request

import (
	"bufio"
	"context"
	"net"
	"net/http"
)

// Recorder returns a ResponseWriter for another handler. It records the status and the size of the response. It calls
// onUpgrade when the connection is upgraded, unless onUpgrade is nil.
func (q *Request) Recorder(onUpgrade func()) http.ResponseWriter {
	return &responseRecorder{q.W, q, onUpgrade}
}

// responseRecorder records the status and the size of a response that another handler writes.
type responseRecorder struct {
	http.ResponseWriter
	request   *Request
	onUpgrade func()
}

// WriteHeader implements http.ResponseWriter.
func (o *responseRecorder) WriteHeader(status int) {
	o.request.Status = status
	o.request.AuditStart()
	o.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (o *responseRecorder) Write(p []byte) (int, error) {
	if o.request.Status == 0 {
		o.request.Status = http.StatusOK
	}
	o.request.Size += len(p)
	return o.ResponseWriter.Write(p)
}

// Hijack implements http.Hijacker for http.ResponseController. The request becomes an upgraded connection.
func (o *responseRecorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(o.ResponseWriter).Hijack()
	if err == nil {
		o.request.Status = http.StatusSwitchingProtocols
		if o.onUpgrade != nil {
			o.onUpgrade()
		}
		o.request.AuditStart()
		// Close the connection when the request ends.
		context.AfterFunc(o.request.R.Context(), func() { _ = conn.Close() })
	}
	return conn, buffered, err
}

// Flush implements http.Flusher, which upstream's code needs.
func (o *responseRecorder) Flush() { _ = http.NewResponseController(o.ResponseWriter).Flush() }

// Unwrap returns the wrapped writer to http.ResponseController.
func (o *responseRecorder) Unwrap() http.ResponseWriter { return o.ResponseWriter }
