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
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// chunk is how much of a list is written at once.
const chunk = 256 << 10

var chunks = sync.Pool{New: func() any { b := make([]byte, 0, chunk+64<<10); return &b }}

// list answers with a collection.
func (q *request) list() error {
	if err := q.negotiate(); err != nil {
		return err
	}
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

// respondList answers with a list as it was asked for. What can fail is done before the first byte.
func (q *request) respondList(l *engine.List) error {
	if err := q.takeSlotToEncode(l.Items...); err != nil {
		return err
	}
	m := &q.media
	switch {
	case m.view == viewPartial:
		return mediaError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"you requested PartialObjectMetadata, but the requested object is a list (*unstructured.UnstructuredList)")
	case q.audits(auditinternal.LevelRequestResponse):
		if err := q.auditAnswer(func() ([]byte, error) { return q.listJSON(l) }); err != nil {
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
		return q.stream(l.Items, head, tail, item)
	}
	js, err := q.listJSON(l)
	if err == nil && m.pretty && m.view == viewObject && l.Version.Type != nil {
		js, err = readable(js, l.Version.Type.NewList())
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

// listParts are what stands before and after the items of a list as JSON, and what appends one of them.
func (q *request) listParts(l *engine.List) (head, tail []byte, item func([]byte, engine.Object) ([]byte, error), err error) {
	switch q.media.view {
	case viewTable:
		t, err := q.newTable()
		if err != nil {
			return nil, nil, nil, err
		}
		return t.head(l.Revision, l.Continue, l.Remaining), []byte("]}"), t.appendRow, nil
	case viewPartialList:
		version := q.media.version
		item = func(dst []byte, o engine.Object) ([]byte, error) { return appendPartial(dst, o, version), nil }
	default:
		item = appendItem
	}
	return q.listHead(l), q.listTail(l), item, nil
}

// listJSON is a list as a whole.
func (q *request) listJSON(l *engine.List) ([]byte, error) {
	head, tail, item, err := q.listParts(l)
	if err != nil {
		return nil, err
	}
	js, err := appendItems(head, l.Items, item)
	return append(js, tail...), err
}

func appendItem(dst []byte, o engine.Object) ([]byte, error) { return o.AppendItem(dst), nil }

func appendItems(dst []byte, items []engine.Object, item func([]byte, engine.Object) ([]byte, error)) ([]byte, error) {
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

// listHead is the list up to the first item. The order of fields is that of an
// unstructured list: sorted.
func (q *request) listHead(l *engine.List) []byte {
	apiVersion := l.Version.APIVersion
	if q.media.view == viewPartialList {
		apiVersion = "meta.k8s.io/" + q.media.version
	}
	open, _ := q.brackets(l)
	return []byte(`{"apiVersion":"` + apiVersion + `","items":` + open)
}

// brackets are what stands around the items of a list. As upstream, that of metadata alone has null for none.
func (q *request) brackets(l *engine.List) (open, shut string) {
	if q.media.view == viewPartialList && len(l.Items) == 0 {
		return "null", ""
	}
	return "[", "]"
}

func (q *request) listTail(l *engine.List) []byte {
	kind := l.Version.Definition.Names.ListKind
	if q.media.view == viewPartialList {
		kind = "PartialObjectMetadataList"
	}
	unstructured := q.media.view != viewPartialList && l.Version.Definition.Custom != nil
	_, shut := q.brackets(l)
	tail := append([]byte(shut+`,"kind":"`+kind+`","metadata":`), listMeta(l.Revision, l.Continue, l.Remaining, unstructured)...)
	return append(tail, '}')
}

// listMeta is the metadata of a list as JSON. That of an unstructured one has a token even at its end.
func listMeta(revision int64, token string, remaining *int64, unstructured bool) []byte {
	js := []byte{'{'}
	if token != "" || unstructured {
		js = append(object.AppendString(append(js, `"continue":`...), token), ',')
	}
	if remaining != nil {
		js = strconv.AppendInt(append(js, `"remainingItemCount":`...), *remaining, 10)
		js = append(js, ',')
	}
	if revision == 0 { // of a computed kind
		return append(bytes.TrimSuffix(js, []byte(",")), '}')
	}
	js = strconv.AppendInt(append(js, `"resourceVersion":"`...), revision, 10)
	return append(js, `"}`...)
}

// stream writes a list in chunks, items as they stand. Only the first chunk may still become an
// error; an item that fails later, which only a damaged object does, ends the connection.
func (q *request) stream(items []engine.Object, head, tail []byte, item func([]byte, engine.Object) ([]byte, error)) error {
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
			return q.broken(out, err)
		}
		if len(buf) < chunk {
			continue
		}
		if out == nil {
			if err := q.takeSlot(0); err != nil { // such a list is expensive
				return err
			}
			out = q.open()
		}
		q.size += len(buf)
		if _, err := out.Write(buf); err != nil {
			return nil // the client has gone
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
	_, _ = out.Write(buf) // the client has gone; there is nobody to tell
	q.shut(out)
	return nil
}

// broken is the end of a list that cannot be completed.
func (q *request) broken(out io.Writer, err error) error {
	if out != nil {
		panic(http.ErrAbortHandler)
	}
	return err
}

// open starts a response that comes in chunks.
func (q *request) open() io.Writer {
	h := q.w.Header()
	h["Content-Type"] = []string{q.media.media}
	q.status = http.StatusOK
	q.seat.Release(time.Now) // a client that reads slowly holds up no other one
	q.deadline(time.Now().Add(slowClient))
	if !gzipped.Accepted(q.r) {
		q.w.WriteHeader(q.status)
		return unslotted{q}
	}
	gzipped.Header(h)
	q.w.WriteHeader(q.status)
	return gzipped.NewWriter(unslotted{q})
}

// shut ends a response that open began.
func (q *request) shut(out io.Writer) {
	if z, ok := out.(gzipped.Writer); ok {
		_ = z.Close() // the client has gone; there is nobody to tell
	}
	q.deadline(time.Time{})
}

// protobufList is a list of a built-in kind, or of metadata, as protobuf.
func (q *request) protobufList(l *engine.List) ([]byte, error) {
	meta := &metav1.ListMeta{Continue: l.Continue, RemainingItemCount: l.Remaining}
	if l.Revision > 0 { // it is 0 for a computed kind
		meta.ResourceVersion = strconv.FormatInt(l.Revision, 10)
	}
	var list resource.ProtobufList
	var buf []byte
	for _, o := range l.Items {
		if q.media.view == viewPartialList {
			p, err := partial(o, q.media.version)
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
