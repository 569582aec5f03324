package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/api/gzipped"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	// slowClient is the timeout for writing a large part of a response to a client.
	slowClient = 60 * time.Second
	// maxPooled is the maximum size of a buffer that is returned to the pool.
	maxPooled = 1 << 20
)

// jsonType is shared by all responses and must not be modified.
var jsonType = []string{mediaJSON}

// buffers holds the buffers in which responses are encoded.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

// statusOf returns the Status for an error.
func statusOf(err error) *metav1.Status {
	var withStatus apierrors.APIStatus
	if !errors.As(err, &withStatus) {
		return &metav1.Status{
			TypeMeta: statusType, Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
			Message: err.Error(),
		}
	}
	s := withStatus.Status()
	s.TypeMeta = statusType
	if s.Status == "" {
		s.Status = metav1.StatusFailure
	}
	if s.Code == 0 {
		s.Code = http.StatusInternalServerError
		if s.Status == metav1.StatusSuccess {
			s.Code = http.StatusOK
		}
	}
	return &s
}

var statusType = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}

// fail writes an error.
func (q *request) fail(err error) {
	if err == errNoHandler {
		q.writeNoHandler()
		return
	}
	s := statusOf(err)
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		q.w.Header().Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	q.writeStatus(int(s.Code), s)
}

// writeStatus writes a Status in an encoding that the client accepts.
func (q *request) writeStatus(code int, s *metav1.Status) {
	s.TypeMeta = statusType
	m, ok := q.server.mediaCache.find(q.r.Header.Get("Accept"), q.server.offers, nil)
	if ok {
		q.auditStatus(s)
	} else {
		m = media{offer: q.server.offers[0], pretty: true}
	}
	m.pretty = (m.pretty || q.pretty()) && m.format == formatJSON
	body, err := encodeStatus(m, s)
	if err != nil {
		q.status = http.StatusInternalServerError
		http.Error(q.w, err.Error(), q.status)
		return
	}
	q.write(code, m.media, body)
}

func encodeStatus(m media, s *metav1.Status) ([]byte, error) {
	if m.format == formatProtobuf {
		return resource.AppendProtobuf(nil, "v1", "Status", s)
	}
	body, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return m.transcode(body)
}

// transcode converts the JSON of one value to the negotiated encoding. It may modify js.
func (m media) transcode(js []byte) ([]byte, error) {
	switch {
	case m.format == formatYAML:
		return yaml.JSONToYAML(js)
	case m.format == formatCBOR:
		return appendCBOR(nil, js)
	case m.pretty:
		var out bytes.Buffer
		err := json.Indent(&out, js, "", "  ")
		out.WriteByte('\n')
		return out.Bytes(), err
	}
	return append(js, '\n'), nil
}

// cborTag is the tag of self-described CBOR (RFC 8949, section 3.4.6).
var cborTag = []byte{0xd9, 0xd9, 0xf7}

func appendCBOR(dst, js []byte) ([]byte, error) {
	t, _, err := object.DecodeJSON(js)
	if err != nil {
		return dst, err
	}
	body, err := direct.Marshal(map[string]any(t))
	return append(append(dst, cborTag...), body...), err
}

// write writes a response with a complete body.
func (q *request) write(code int, contentType string, body []byte) {
	if q.trace != nil {
		q.trace.recordResponse(code, body)
		return
	}
	if q.weight > 0 {
		q.releaseBody()
	}
	q.seat.Release(time.Now) // a client that reads slowly must not hold a seat
	if q.slot != nil && (len(body) <= gzipped.Threshold || !gzipped.Accepted(q.r)) {
		q.slot.Release()
	}
	h := q.w.Header()
	if contentType == mediaJSON {
		h["Content-Type"] = jsonType
	} else {
		h["Content-Type"] = []string{contentType}
	}
	q.status, q.size = code, len(body)
	if len(body) <= gzipped.Threshold || !gzipped.Accepted(q.r) {
		q.w.WriteHeader(code)
		_, _ = q.w.Write(body) // an error means that the client has disconnected
		return
	}
	gzipped.Header(h)
	q.w.WriteHeader(code)
	z := gzipped.NewWriter(pausingWriter{q})
	_, _ = z.Write(body) // an error means that the client has disconnected
	_ = z.Close()
}

// respond writes one object in the negotiated form.
func (q *request) respond(code int, o record.Object) error {
	if q.auditState != nil {
		if err := q.auditResponse(func() ([]byte, error) { return q.encode(nil, o) }); err != nil {
			return err
		}
	}
	if len(o.Record.Value) > expensiveObject {
		if err := q.takeSlotToEncode(o); err != nil {
			return err
		}
	}
	b := buffers.Get().(*[]byte)
	body, err := q.encode((*b)[:0], o)
	if err != nil {
		return err
	}
	q.write(code, q.media.media, body)
	if *b = body; cap(body) <= maxPooled {
		buffers.Put(b)
	}
	return nil
}

// encode appends an object in the negotiated form.
func (q *request) encode(dst []byte, o record.Object) ([]byte, error) {
	m := &q.media
	var err error
	switch m.view {
	case viewTable:
		t, err := q.newTable()
		if err != nil {
			return dst, err
		}
		if dst, err = t.appendSingle(dst, o); err != nil {
			return dst, err
		}
	case viewPartial:
		if m.format == formatProtobuf {
			return appendPartialProtobuf(dst, o, m.version)
		}
		dst = appendPartial(dst, o, m.version)
	case viewPartialList:
		return dst, mediaError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"you requested PartialObjectMetadataList, but the requested object is not a list "+
				"(*unstructured.Unstructured)")
	default:
		if m.format == formatProtobuf {
			return appendProtobuf(dst, o)
		}
		dst = o.AppendJSON(dst)
		if m.pretty && o.Version.Type != nil {
			if dst, err = reorderFields(dst, o.Version.Type.New()); err != nil {
				return nil, err
			}
		}
	}
	if m.format == formatJSON && !m.pretty {
		return append(dst, '\n'), nil
	}
	if dst, err = m.transcode(dst); err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.media, err)
	}
	return dst, nil
}

// reorderFields reorders the fields of an object or list to the order of its Go type. Upstream writes this order,
// and documentation shows it. Responses that are not indented keep the stored order.
func reorderFields(js []byte, typed runtime.Object) ([]byte, error) {
	if err := json.Unmarshal(js, typed); err != nil {
		return nil, fmt.Errorf("decode the stored object: %w", err)
	}
	return json.Marshal(typed)
}

// appendProtobuf appends the protobuf of an object with its envelope.
func appendProtobuf(dst []byte, o record.Object) ([]byte, error) {
	message, err := o.Protobuf()
	if err != nil {
		return dst, err
	}
	return resource.AppendMessage(dst, o.Version.APIVersion, o.Version.Definition.Names.Kind, message)
}

// setWriteDeadline sets the deadline after which the connection of a slow client is closed.
func (q *request) setWriteDeadline(at time.Time) {
	// The writer of the loopback does not support deadlines, and its clients cannot stall.
	_ = http.NewResponseController(q.w).SetWriteDeadline(at)
}
