package handlers

import (
	"io"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/record"
)

// chunk is the size in bytes at which a part of a list is written to the client.
const chunk = 256 << 10

var chunks = sync.Pool{New: func() any { b := make([]byte, 0, chunk+64<<10); return &b }}

// list writes a collection.
func (q call) list() error {
	o, err := q.listOptions()
	if err != nil {
		return err
	}
	if err := q.takeSlotForList(o); err != nil {
		return err
	}
	l, err := q.Engine.List(q.Slot.Context(q.R.Context()), q.Target(), o.engine())
	if err != nil {
		return err
	}
	return q.respondList(l)
}

// respondList writes a list in the negotiated form. All errors except those of damaged objects occur before the
// first byte is written.
func (q call) respondList(l *read.List) error {
	if err := q.TakeSlotToEncode(l.Items...); err != nil {
		return err
	}
	m := &q.Media
	if m.View == encoding.ViewPartial {
		return encoding.ErrNotObject
	}
	t, err := q.NewTable()
	if err != nil {
		return err
	}
	if err := q.AuditResponse(func() ([]byte, error) { return m.ListJSON(l, t) }); err != nil {
		return err
	}
	if m.Format == encoding.FormatJSON && !m.Pretty {
		return q.streamList(l.Items, m.ListParts(l, t))
	}
	body, err := m.EncodeList(l, t)
	if err == nil {
		q.Write(http.StatusOK, m.MediaType, body)
	}
	return err
}

// streamList writes a list in chunks. It returns an error only before the first chunk is written. Afterwards it
// aborts the connection if a stored object is damaged and cannot be encoded.
func (q call) streamList(items []record.Object, parts encoding.ListParts) error {
	p := chunks.Get().(*[]byte)
	defer func() {
		if cap(*p) <= 4*chunk {
			chunks.Put(p)
		}
	}()
	buf := append((*p)[:0], parts.Head...)
	var out io.Writer
	var err error
	for i := range items {
		if i > 0 {
			buf = append(buf, ',')
		}
		if buf, err = parts.Item(buf, items[i]); err != nil {
			if out != nil {
				panic(http.ErrAbortHandler) // a chunk has been written
			}
			return err
		}
		if len(buf) < chunk {
			continue
		}
		if out == nil {
			if err := q.TakeSlot(0); err != nil { // a list of more than one chunk is expensive
				return err
			}
			out = q.OpenResponse()
		}
		q.Size += len(buf)
		if _, err := out.Write(buf); err != nil {
			return nil // the client has disconnected
		}
		buf = buf[:0]
	}
	buf = append(append(buf, parts.Tail...), '\n')
	*p = buf
	if out == nil {
		q.Write(http.StatusOK, runtime.ContentTypeJSON, buf)
		return nil
	}
	q.Size += len(buf)
	_, _ = out.Write(buf) // an error means that the client has disconnected
	q.CloseResponse(out)
	return nil
}

// expensiveList is the number of objects above which a list is expensive.
const expensiveList = 500

// takeSlotForList takes a slot for a list, or for the initial list of a watch, that reads many objects.
func (q call) takeSlotForList(o *listOptions) error {
	selects := o.LabelSelector != nil && !o.LabelSelector.Empty() || o.FieldSelector != nil && !o.FieldSelector.Empty()
	if o.Limit > 0 && o.Limit <= expensiveList && !selects || q.Engine.Count(q.Target()) <= expensiveList {
		return nil
	}
	return q.TakeSlot(0)
}
