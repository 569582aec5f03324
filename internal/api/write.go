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
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	// slowClient is how long a client may take to accept a large piece of a response.
	slowClient = 60 * time.Second
	// maxPooled bounds the buffers that are kept for the next response.
	maxPooled = 1 << 20
)

// jsonType is shared by all responses; nobody appends to it.
var jsonType = []string{mediaJSON}

// buffers holds what responses are built in.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

// statusOf is the Status that an error is answered with.
func statusOf(err error) *metav1.Status {
	var withStatus apierrors.APIStatus
	if !errors.As(err, &withStatus) {
		return &metav1.Status{
			TypeMeta: statusType, Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error(),
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

// fail answers with an error.
func (q *request) fail(err error) {
	s := statusOf(err)
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		q.w.Header().Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	q.writeStatus(int(s.Code), s)
}

// writeStatus answers with a Status in an encoding that the client accepts.
func (q *request) writeStatus(code int, s *metav1.Status) {
	s.TypeMeta = statusType
	m, ok := q.server.choices.find(q.r.Header.Get("Accept"), q.server.offers, nil)
	if ok {
		q.auditStatus(s)
	} else {
		m = media{offer: q.server.offers[0], pretty: true}
	}
	m.pretty = (m.pretty || pretty(q.r)) && m.format == formatJSON
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

// transcode turns the JSON of one value into what a client asked for. js may be modified.
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

// cborTag marks data as CBOR that describes itself (RFC 8949, section 3.4.6).
var cborTag = []byte{0xd9, 0xd9, 0xf7}

func appendCBOR(dst, js []byte) ([]byte, error) {
	t, _, err := object.DecodeJSON(js)
	if err != nil {
		return dst, err
	}
	body, err := direct.Marshal(map[string]any(t))
	return append(append(dst, cborTag...), body...), err
}

// write sends a body that is known as a whole.
func (q *request) write(code int, contentType string, body []byte) {
	if q.trace != nil {
		q.trace.answers(code, body)
		return
	}
	if q.weight > 0 {
		q.releaseBody()
	}
	q.seat.Release(time.Now) // a client that reads slowly holds up no other one
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
		_, _ = q.w.Write(body) // the client has gone; there is nobody to tell
		return
	}
	gzipped.Header(h)
	q.w.WriteHeader(code)
	z := gzipped.NewWriter(unslotted{q})
	_, _ = z.Write(body) // the client has gone; there is nobody to tell
	_ = z.Close()
}

// respond answers with one object as it was asked for.
func (q *request) respond(code int, o engine.Object) error {
	if q.audited != nil {
		if err := q.auditAnswer(func() ([]byte, error) { return q.encode(nil, o) }); err != nil {
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

// encode appends an object in the form and the encoding that were negotiated.
func (q *request) encode(dst []byte, o engine.Object) ([]byte, error) {
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
			"you requested PartialObjectMetadataList, but the requested object is not a list (*unstructured.Unstructured)")
	default:
		if m.format == formatProtobuf {
			return appendProtobuf(dst, o)
		}
		dst = o.AppendJSON(dst)
		if m.pretty && o.Version.Type != nil {
			if dst, err = readable(dst, o.Version.Type.New()); err != nil {
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

// readable puts the fields of an object, or a list, of a Go type in the order of the type, in which upstream writes them and documents show
// them. What nobody reads along keeps that of the store.
func readable(js []byte, typed runtime.Object) ([]byte, error) {
	if err := json.Unmarshal(js, typed); err != nil {
		return nil, fmt.Errorf("read what is stored: %w", err)
	}
	return json.Marshal(typed)
}

// appendProtobuf appends an object in its envelope.
func appendProtobuf(dst []byte, o engine.Object) ([]byte, error) {
	message, err := o.Protobuf()
	if err != nil {
		return dst, err
	}
	return resource.AppendMessage(dst, o.Version.APIVersion, o.Version.Definition.Names.Kind, message)
}

// deadline ends the connection of a client that does not take what it is sent.
func (q *request) deadline(at time.Time) {
	// A writer without deadlines, that of the loopback, has no client that could stall.
	_ = http.NewResponseController(q.w).SetWriteDeadline(at)
}
