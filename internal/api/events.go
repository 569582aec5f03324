package api

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// events encodes the events of a watch stream.
type events struct {
	request *request
	table   *table // nil if the client did not request a Table
	scratch []byte
}

func (q *request) newEvents() (*events, error) {
	e := &events{request: q}
	if q.media.view != viewTable {
		return e, nil
	}
	var err error
	e.table, err = q.newTable()
	return e, err
}

const (
	eventOpen   = `{"type":"`
	eventObject = `","object":`
	eventClose  = "}\n"
)

// append appends the encoding of one event to dst.
func (e *events) append(dst []byte, w read.WatchEvent) ([]byte, error) {
	o := w.Object
	if w.Type == "BOOKMARK" {
		o = bookmark(w)
	}
	m := &e.request.media
	if m.format == formatProtobuf {
		return e.appendProtobuf(dst, w.Type, o)
	}
	start := len(dst)
	dst = append(append(append(dst, eventOpen...), w.Type...), eventObject...)
	var err error
	switch m.view {
	case viewTable:
		dst, err = e.appendTable(dst, w, o)
	case viewPartial, viewPartialList:
		dst = appendPartial(dst, o, m.version)
	default:
		dst = o.AppendJSON(dst)
	}
	if err != nil {
		return dst[:start], err
	}
	dst = append(dst, eventClose...)
	if m.format == formatCBOR {
		return e.recode(dst, start)
	}
	return dst, nil
}

// recode converts the JSON event that begins at start to CBOR.
func (e *events) recode(dst []byte, start int) ([]byte, error) {
	e.scratch = append(e.scratch[:0], dst[start:]...)
	return appendCBOR(dst[:start], e.scratch)
}

// appendTable appends a Table with the object of the event as its only row. Only the first Table of a stream has
// column definitions.
func (e *events) appendTable(dst []byte, w read.WatchEvent, o record.Object) ([]byte, error) {
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

func (e *events) appendProtobuf(dst []byte, event string, o record.Object) ([]byte, error) {
	m := &e.request.media
	var err error
	if m.view == viewObject {
		e.scratch, err = appendProtobuf(e.scratch[:0], o)
	} else {
		e.scratch, err = appendPartialProtobuf(e.scratch[:0], o, m.version)
	}
	if err != nil {
		return dst, err
	}
	return resource.AppendProtobufEvent(dst, event, e.scratch)
}

// appendError appends the ERROR event that ends a stream.
func (e *events) appendError(dst []byte, s *metav1.Status) ([]byte, error) {
	if e.request.media.format == formatProtobuf {
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
	if e.request.media.format == formatCBOR {
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
