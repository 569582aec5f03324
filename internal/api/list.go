package api

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"

	"github.com/trellis-k8s/trellis/internal/api/gzipped"
	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// chunk is the size in bytes at which a part of a list is written to the client.
const chunk = 256 << 10

var chunks = sync.Pool{New: func() any { b := make([]byte, 0, chunk+64<<10); return &b }}

// list writes a collection.
func (q *request) list() error {
	o, err := q.listOptions()
	if err != nil {
		return err
	}
	if err := q.takeSlotForList(o); err != nil {
		return err
	}
	l, err := q.server.engine.List(q.slot.Context(q.r.Context()), q.target(), o.engine())
	if err != nil {
		return err
	}
	return q.respondList(l)
}

// respondList writes a list in the negotiated form. All errors except those of damaged objects occur before the
// first byte is written.
func (q *request) respondList(l *read.List) error {
	if err := q.takeSlotToEncode(l.Items...); err != nil {
		return err
	}
	m := &q.media
	switch {
	case m.view == viewPartial:
		return mediaError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"you requested PartialObjectMetadata, but the requested object is a list (*unstructured.UnstructuredList)")
	case q.auditsAt(auditinternal.LevelRequestResponse):
		if err := q.auditResponse(func() ([]byte, error) { return q.listJSON(l) }); err != nil {
			return err
		}
	}
	switch {
	case m.format == formatProtobuf:
		body, err := q.protobufList(l)
		if err == nil {
			q.write(http.StatusOK, m.media, body)
		}
		return err
	case m.format == formatJSON && !m.pretty:
		head, tail, item, err := q.listParts(l)
		if err != nil {
			return err
		}
		return q.streamList(l.Items, head, tail, item)
	}
	js, err := q.listJSON(l)
	if err == nil && m.pretty && m.view == viewObject && l.Version.Type != nil {
		js, err = reorderFields(js, l.Version.Type.NewList())
	}
	if err != nil {
		return err
	}
	body, err := m.transcode(js)
	if err == nil {
		q.write(http.StatusOK, m.media, body)
	}
	return err
}

// listParts returns the JSON before and after the items of a list, and a function that appends one item.
func (q *request) listParts(l *read.List) (
	head, tail []byte, item func([]byte, record.Object) ([]byte, error), err error) {
	switch q.media.view {
	case viewTable:
		t, err := q.newTable()
		if err != nil {
			return nil, nil, nil, err
		}
		return t.head(l.Revision, l.Continue, l.Remaining), []byte("]}"), t.appendRow, nil
	case viewPartialList:
		version := q.media.version
		item = func(dst []byte, o record.Object) ([]byte, error) { return appendPartial(dst, o, version), nil }
	default:
		item = appendItem
	}
	return q.listHead(l), q.listTail(l), item, nil
}

// listJSON returns the JSON of the whole list.
func (q *request) listJSON(l *read.List) ([]byte, error) {
	head, tail, item, err := q.listParts(l)
	if err != nil {
		return nil, err
	}
	js, err := appendItems(head, l.Items, item)
	return append(js, tail...), err
}

func appendItem(dst []byte, o record.Object) ([]byte, error) { return o.AppendItem(dst), nil }

func appendItems(dst []byte, items []record.Object, item func([]byte, record.Object) ([]byte, error)) ([]byte, error) {
	var err error
	for i := range items {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = item(dst, items[i]); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// listHead returns the JSON of the list before its first item. Fields are sorted by name, as in upstream's
// unstructured lists.
func (q *request) listHead(l *read.List) []byte {
	apiVersion := l.Version.APIVersion
	if q.media.view == viewPartialList {
		apiVersion = "meta.k8s.io/" + q.media.version
	}
	opening, _ := q.brackets(l)
	return []byte(`{"apiVersion":"` + apiVersion + `","items":` + opening)
}

// brackets returns the JSON around the items of a list. Like upstream, it returns null instead
// of [] for an empty PartialObjectMetadataList.
func (q *request) brackets(l *read.List) (opening, closing string) {
	if q.media.view == viewPartialList && len(l.Items) == 0 {
		return "null", ""
	}
	return "[", "]"
}

func (q *request) listTail(l *read.List) []byte {
	kind := l.Version.Definition.Names.ListKind
	if q.media.view == viewPartialList {
		kind = "PartialObjectMetadataList"
	}
	unstructured := q.media.view != viewPartialList && l.Version.Definition.Unstructured
	_, closing := q.brackets(l)
	tail := append([]byte(closing+`,"kind":"`+kind+`","metadata":`),
		listMeta(l.Revision, l.Continue, l.Remaining, unstructured)...)
	return append(tail, '}')
}

// listMeta returns the metadata of a list as JSON. If unstructured is true, the metadata contains the continue
// token even if the token is empty.
func listMeta(revision int64, token string, remaining *int64, unstructured bool) []byte {
	js := []byte{'{'}
	if token != "" || unstructured {
		js = append(object.AppendString(append(js, `"continue":`...), token), ',')
	}
	if remaining != nil {
		js = strconv.AppendInt(append(js, `"remainingItemCount":`...), *remaining, 10)
		js = append(js, ',')
	}
	if revision == 0 { // a computed kind
		return append(bytes.TrimSuffix(js, []byte(",")), '}')
	}
	js = strconv.AppendInt(append(js, `"resourceVersion":"`...), revision, 10)
	return append(js, `"}`...)
}

// streamList writes a list in chunks. It returns an error only before the first chunk is written. Afterwards it
// aborts the connection if a stored object is damaged and cannot be encoded.
func (q *request) streamList(
	items []record.Object, head, tail []byte, item func([]byte, record.Object) ([]byte, error)) error {
	p := chunks.Get().(*[]byte)
	defer func() {
		if cap(*p) <= 4*chunk {
			chunks.Put(p)
		}
	}()
	buf := append((*p)[:0], head...)
	var out io.Writer
	var err error
	for i := range items {
		if i > 0 {
			buf = append(buf, ',')
		}
		if buf, err = item(buf, items[i]); err != nil {
			return q.abortList(out, err)
		}
		if len(buf) < chunk {
			continue
		}
		if out == nil {
			if err := q.takeSlot(0); err != nil { // a list of more than one chunk is expensive
				return err
			}
			out = q.openResponse()
		}
		q.size += len(buf)
		if _, err := out.Write(buf); err != nil {
			return nil // the client has disconnected
		}
		buf = buf[:0]
	}
	buf = append(append(buf, tail...), '\n')
	*p = buf
	if out == nil {
		q.write(http.StatusOK, mediaJSON, buf)
		return nil
	}
	q.size += len(buf)
	_, _ = out.Write(buf) // an error means that the client has disconnected
	q.closeResponse(out)
	return nil
}

// abortList ends a list that cannot be completed. It returns err, or aborts the connection if a chunk has been
// written.
func (q *request) abortList(out io.Writer, err error) error {
	if out != nil {
		panic(http.ErrAbortHandler)
	}
	return err
}

// openResponse starts a response that is written in chunks.
func (q *request) openResponse() io.Writer {
	h := q.w.Header()
	h["Content-Type"] = []string{q.media.media}
	q.status = http.StatusOK
	q.seat.Release(time.Now) // a client that reads slowly must not hold a seat
	q.setWriteDeadline(time.Now().Add(slowClient))
	if !gzipped.Accepted(q.r) {
		q.w.WriteHeader(q.status)
		return pausingWriter{q}
	}
	gzipped.Header(h)
	q.w.WriteHeader(q.status)
	return gzipped.NewWriter(pausingWriter{q})
}

// closeResponse ends a response that openResponse started.
func (q *request) closeResponse(out io.Writer) {
	if z, ok := out.(gzipped.Writer); ok {
		_ = z.Close() // an error means that the client has disconnected
	}
	q.setWriteDeadline(time.Time{})
}

// protobufList returns a list of a built-in kind, or of PartialObjectMetadata, as protobuf.
func (q *request) protobufList(l *read.List) ([]byte, error) {
	meta := &metav1.ListMeta{Continue: l.Continue, RemainingItemCount: l.Remaining}
	if l.Revision > 0 { // 0 for a computed kind
		meta.ResourceVersion = strconv.FormatInt(l.Revision, 10)
	}
	var list resource.ProtobufList
	var buf []byte
	for _, o := range l.Items {
		if q.media.view == viewPartialList {
			p, err := partialMetadata(o, q.media.version)
			if err != nil {
				return nil, err
			}
			if err := list.Add(p); err != nil {
				return nil, err
			}
			continue
		}
		buf = o.AppendJSON(buf[:0])
		obj, err := l.Version.Type.Object(buf)
		if err != nil {
			return nil, err
		}
		if err := list.Add(obj); err != nil {
			return nil, err
		}
	}
	if q.media.view == viewPartialList {
		return list.Append(nil, "meta.k8s.io/"+q.media.version, "PartialObjectMetadataList", meta)
	}
	return list.Append(nil, l.Version.APIVersion, l.Version.Definition.Names.ListKind, meta)
}
