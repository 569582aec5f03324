package request

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/api/gzipped"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/scales"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
)

const (
	// SlowClient is the timeout for writing a large part of a response to a client.
	SlowClient = 60 * time.Second
	// maxPooled is the maximum size of a buffer that is returned to the pool.
	maxPooled = 1 << 20
)

// jsonType is shared by all responses and must not be modified.
var jsonType = []string{runtime.ContentTypeJSON}

// buffers holds the buffers in which responses are encoded.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

// Fail writes an error.
func (q *Request) Fail(err error) {
	if err == ErrNoHandler {
		q.writeNoHandler()
		return
	}
	q.OpenFence(err)
	s := encoding.StatusOf(err)
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		q.W.Header().Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	q.writeStatus(int(s.Code), s)
}

// OpenFence lets a response pass that contains only the error verb.ErrHistoryLost, although the server must not send
// data any more. It does nothing for other errors.
func (q *Request) OpenFence(err error) {
	if f, fenced := q.W.(interface{ Open() }); fenced && err == verb.ErrHistoryLost {
		f.Open()
	}
}

// writeStatus writes a Status in an encoding that the client accepts.
func (q *Request) writeStatus(code int, s *metav1.Status) {
	s.TypeMeta = encoding.StatusType
	m, ok := q.Negotiator.Find(q.R.Header.Get("Accept"), nil)
	if ok {
		q.AuditStatus(s)
	} else {
		m = encoding.Media{Offer: q.Negotiator.Offers[0], Pretty: true}
	}
	m.Pretty = (m.Pretty || q.Pretty()) && m.Format == encoding.FormatJSON
	body, err := m.EncodeStatus(s)
	if err != nil {
		q.Status = http.StatusInternalServerError
		http.Error(q.W, err.Error(), q.Status)
		return
	}
	q.Write(code, m.MediaType, body)
}

// Write writes a response with a complete body.
func (q *Request) Write(code int, contentType string, body []byte) {
	if q.Capture != nil {
		q.Capture(code, body)
		return
	}
	if q.Weight > 0 {
		q.ReleaseMemory()
	}
	q.Seat.Release(time.Now) // a client that reads slowly must not hold a seat
	if q.Slot != nil && (len(body) <= gzipped.Threshold || !gzipped.Accepted(q.R)) {
		q.Slot.Release()
	}
	h := q.W.Header()
	if contentType == runtime.ContentTypeJSON {
		h["Content-Type"] = jsonType
	} else {
		h["Content-Type"] = []string{contentType}
	}
	q.Status, q.Size = code, len(body)
	if len(body) <= gzipped.Threshold || !gzipped.Accepted(q.R) {
		q.W.WriteHeader(code)
		_, _ = q.W.Write(body) // an error means that the client has disconnected
		return
	}
	gzipped.Header(h)
	q.W.WriteHeader(code)
	z := gzipped.NewWriter(pausingWriter{q})
	_, _ = z.Write(body) // an error means that the client has disconnected
	_ = z.Close()
}

// Respond writes one object in the negotiated form.
func (q *Request) Respond(code int, o record.Object) error {
	var t *encoding.Table
	if q.Media.View == encoding.ViewTable {
		var err error
		if t, err = q.NewTable(); err != nil {
			return err
		}
	}
	if q.AuditState != nil {
		if err := q.AuditResponse(func() ([]byte, error) { return q.Media.AppendObject(nil, o, t) }); err != nil {
			return err
		}
	}
	if len(o.Record.Value) > expensiveObject {
		if err := q.TakeSlotToEncode(o); err != nil {
			return err
		}
	}
	b := buffers.Get().(*[]byte)
	body, err := q.Media.AppendObject((*b)[:0], o, t)
	if err != nil {
		return err
	}
	q.Write(code, q.Media.MediaType, body)
	if *b = body; cap(body) <= maxPooled {
		buffers.Put(b)
	}
	return nil
}

// NewTable returns a table for the response, with the Table options in the query. It returns nil if the response is
// not a Table.
func (q *Request) NewTable() (*encoding.Table, error) {
	if q.Media.View != encoding.ViewTable {
		return nil, nil
	}
	var o metav1.TableOptions
	if strings.Contains(q.R.URL.RawQuery, "=") {
		if err := DecodeOptions(q.Query(), &o); err != nil {
			return nil, err
		}
	}
	if errs := validation.ValidateTableOptions(&o); len(errs) == 1 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", errs[0].Error()))
	}
	v := q.Kind
	if q.Subresource == "scale" {
		if v = scales.BuiltinVersion; q.Kind.Scale.ByPath {
			v = scales.Version
		}
	}
	return encoding.NewTable(v, q.Media.Version, &o), nil
}

// SetWriteDeadline sets the deadline after which the connection of a slow client is closed.
func (q *Request) SetWriteDeadline(at time.Time) {
	// The writer of the loopback does not support deadlines, and its clients cannot stall.
	_ = http.NewResponseController(q.W).SetWriteDeadline(at)
}

// Pretty reports whether the response should be indented for a human reader.
func (q *Request) Pretty() bool {
	if strings.Contains(q.R.URL.RawQuery, "pretty") {
		if p := q.Query().Get("pretty"); p != "" {
			on, _ := strconv.ParseBool(p) // like upstream, an invalid value means false
			return on
		}
	}
	agent := q.R.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") ||
		strings.HasPrefix(agent, "Mozilla/5.0")
}

// OpenResponse starts a response that is written in chunks.
func (q *Request) OpenResponse() io.Writer {
	h := q.W.Header()
	h["Content-Type"] = []string{q.Media.MediaType}
	q.Status = http.StatusOK
	q.Seat.Release(time.Now) // a client that reads slowly must not hold a seat
	q.SetWriteDeadline(time.Now().Add(SlowClient))
	if !gzipped.Accepted(q.R) {
		q.W.WriteHeader(q.Status)
		return pausingWriter{q}
	}
	gzipped.Header(h)
	q.W.WriteHeader(q.Status)
	return gzipped.NewWriter(pausingWriter{q})
}

// CloseResponse ends a response that OpenResponse started.
func (q *Request) CloseResponse(out io.Writer) {
	if z, ok := out.(gzipped.Writer); ok {
		_ = z.Close() // an error means that the client has disconnected
	}
	q.SetWriteDeadline(time.Time{})
}
