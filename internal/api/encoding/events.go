package encoding

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Events encodes the events of a watch stream.
type Events struct {
	media   *Media
	table   *Table // nil if the client did not request a Table
	scratch []byte
}

// NewEvents returns an encoder in the negotiated form. t is the Table if that is the form.
func NewEvents(m *Media, t *Table) *Events { return &Events{media: m, table: t} }

const (
	eventOpen   = `{"type":"`
	eventObject = `","object":`
	eventClose  = "}\n"
)

// Append appends the encoding of one event to dst.
func (e *Events) Append(dst []byte, w read.WatchEvent) ([]byte, error) {
	o := w.Object
	if w.Type == "BOOKMARK" {
		o = bookmark(w)
	}
	m := e.media
	if m.Format == FormatProtobuf {
		return e.appendProtobuf(dst, w.Type, o)
	}
	start := len(dst)
	dst = append(append(append(dst, eventOpen...), w.Type...), eventObject...)
	var err error
	switch m.View {
	case ViewTable:
		dst, err = e.appendTable(dst, w, o)
	case ViewPartial, ViewPartialList:
		dst = appendPartial(dst, o, m.Version)
	default:
		dst = o.AppendJSON(dst)
	}
	if err != nil {
		return dst[:start], err
	}
	dst = append(dst, eventClose...)
	if m.Format == FormatCBOR {
		return e.recode(dst, start)
	}
	return dst, nil
}

// recode converts the JSON event that begins at start to CBOR.
func (e *Events) recode(dst []byte, start int) ([]byte, error) {
	e.scratch = append(e.scratch[:0], dst[start:]...)
	return appendCBOR(dst[:start], e.scratch)
}

// appendTable appends a Table with the object of the event as its only row. Only the first Table of a stream has
// column definitions.
func (e *Events) appendTable(dst []byte, w read.WatchEvent, o record.Object) ([]byte, error) {
	include := e.table.include
	if w.InitialEventsEnd && include == metav1.IncludeNone {
		// The metadata has the annotation that marks the end of the initial events.
		e.table.include = metav1.IncludeMetadata
	}
	e.table.emptyRow = w.Type == "BOOKMARK"
	e.table.refresh()
	dst, err := e.table.appendSingle(dst, o)
	e.table.include, e.table.headers = include, false
	return dst, err
}

func (e *Events) appendProtobuf(dst []byte, event string, o record.Object) ([]byte, error) {
	m := e.media
	var err error
	if m.View == ViewObject {
		e.scratch, err = appendProtobuf(e.scratch[:0], o)
	} else {
		e.scratch, err = appendPartialProtobuf(e.scratch[:0], o, m.Version)
	}
	if err != nil {
		return dst, err
	}
	return resource.AppendProtobufEvent(dst, event, e.scratch)
}

// AppendError appends the ERROR event that ends a stream.
func (e *Events) AppendError(dst []byte, s *metav1.Status) ([]byte, error) {
	if e.media.Format == FormatProtobuf {
		body, err := resource.AppendProtobuf(nil, "v1", "Status", s)
		if err != nil {
			return dst, err
		}
		return resource.AppendProtobufEvent(dst, "ERROR", body)
	}
	js, err := json.Marshal(s)
	if err != nil {
		return dst, err
	}
	start := len(dst)
	dst = append(append(append(append(append(dst, eventOpen...), "ERROR"...), eventObject...), js...), eventClose...)
	if e.media.Format == FormatCBOR {
		return e.recode(dst, start)
	}
	return dst, nil
}

// bookmark returns the object of a BOOKMARK event. Its metadata contains only the resourceVersion and, at the end
// of the initial events, an annotation.
func bookmark(w read.WatchEvent) record.Object {
	o, metadata := w.Object, object.Tree{}
	if w.InitialEventsEnd {
		metadata["annotations"] = object.Tree{metav1.InitialEventsAnnotationKey: "true"}
	}
	return record.NewObject(o.Version, o.Revision, object.Pack(object.Tree{
		"apiVersion": o.Version.APIVersion, "kind": o.Version.Definition.Names.Kind, "metadata": metadata,
	}, 0))
}
