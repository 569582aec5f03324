package encoding

import (
	"bytes"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// ListParts are the JSON before and after the items of a list, and a function that appends one item.
type ListParts struct {
	Head, Tail []byte
	Item       func([]byte, record.Object) ([]byte, error)
}

// ListParts returns the parts of a list. Fields are sorted by name, as in upstream's unstructured lists.
func (m *Media) ListParts(l *read.List, t *Table) ListParts {
	apiVersion, kind := l.Version.APIVersion, l.Version.Definition.Names.ListKind
	opening, closing, unstructured, item := "[", "]", l.Version.Definition.Unstructured, appendItem
	switch version := m.Version; m.View {
	case ViewTable:
		return ListParts{t.head(l.Revision, l.Continue, l.Remaining), []byte("]}"), t.appendRow}
	case ViewPartialList:
		apiVersion, kind, unstructured = "meta.k8s.io/"+version, "PartialObjectMetadataList", false
		item = func(dst []byte, o record.Object) ([]byte, error) { return appendPartial(dst, o, version), nil }
		if len(l.Items) == 0 {
			opening, closing = "null", "" // like upstream
		}
	}
	tail := append([]byte(closing+`,"kind":"`+kind+`","metadata":`),
		listMeta(l.Revision, l.Continue, l.Remaining, unstructured)...)
	return ListParts{[]byte(`{"apiVersion":"` + apiVersion + `","items":` + opening), append(tail, '}'), item}
}

func appendItem(dst []byte, o record.Object) ([]byte, error) { return o.AppendItem(dst), nil }

// ListJSON returns the JSON of the whole list.
func (m *Media) ListJSON(l *read.List, t *Table) ([]byte, error) {
	parts := m.ListParts(l, t)
	js := parts.Head
	for i := range l.Items {
		if i > 0 {
			js = append(js, ',')
		}
		var err error
		if js, err = parts.Item(js, l.Items[i]); err != nil {
			return nil, err
		}
	}
	return append(js, parts.Tail...), nil
}

// EncodeList returns a list in the negotiated form. t is the Table if that is the form.
func (m *Media) EncodeList(l *read.List, t *Table) ([]byte, error) {
	if m.Format == FormatProtobuf {
		return m.protobufList(l)
	}
	js, err := m.ListJSON(l, t)
	if err == nil && m.Pretty && m.View == ViewObject && l.Version.Type != nil {
		js, err = reorderFields(js, l.Version.Type.NewList())
	}
	if err != nil {
		return nil, err
	}
	return m.transcode(js)
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

// protobufList returns a list of a built-in kind, or of PartialObjectMetadata, as protobuf.
func (m *Media) protobufList(l *read.List) ([]byte, error) {
	meta := &metav1.ListMeta{Continue: l.Continue, RemainingItemCount: l.Remaining}
	if l.Revision > 0 { // 0 for a computed kind
		meta.ResourceVersion = strconv.FormatInt(l.Revision, 10)
	}
	apiVersion, kind := l.Version.APIVersion, l.Version.Definition.Names.ListKind
	if m.View == ViewPartialList {
		apiVersion, kind = "meta.k8s.io/"+m.Version, "PartialObjectMetadataList"
	}
	var list resource.ProtobufList
	var buf []byte
	for _, o := range l.Items {
		var obj runtime.Object
		var err error
		if m.View == ViewPartialList {
			obj, err = partialMetadata(o, m.Version)
		} else {
			buf = o.AppendJSON(buf[:0])
			obj, err = l.Version.Type.Object(buf)
		}
		if err == nil {
			err = list.Add(obj)
		}
		if err != nil {
			return nil, err
		}
	}
	return list.Append(nil, apiVersion, kind, meta)
}
