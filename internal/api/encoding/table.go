package encoding

import (
	"bytes"
	"encoding/json"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Table encodes objects as rows of a Table
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables). It is not safe
// for concurrent use.
type Table struct {
	version *resource.Version // version of the kind
	form    string            // version of the Table: v1 or v1beta1
	include metav1.IncludeObjectPolicy
	headers bool
	now     time.Time

	paths     [][]string // paths of the columns that are plain fields
	pathIndex []int      // index into paths for each column; -1 for a computed column
	values    [][]byte   // JSON of the fields of the current object, by path
	needsTree bool       // a column is computed
	emptyRow  bool       // the next row is the row of a BOOKMARK

	// The last age that was formatted. Many objects have the same creation time.
	lastTimestamp string
	lastAge       []byte
}

// NewTable returns a table for objects of version v. form is the version of the Table.
func NewTable(v *resource.Version, form string, o *metav1.TableOptions) *Table {
	t := &Table{version: v, form: form, include: o.IncludeObject, headers: !o.NoHeaders}
	for i := range v.Columns {
		c := &v.Columns[i]
		if len(c.Path) == 0 {
			t.needsTree = true
			t.pathIndex = append(t.pathIndex, -1)
			continue
		}
		t.pathIndex = append(t.pathIndex, len(t.paths))
		t.paths = append(t.paths, c.Path)
	}
	t.values = make([][]byte, len(t.paths))
	t.refresh()
	return t
}

// head returns the JSON of the Table before its first row. The JSON after the last row is `]}`.
func (t *Table) head(revision int64, token string, remaining *int64) []byte {
	dst := append([]byte(`{"apiVersion":"meta.k8s.io/`), t.form...)
	dst = append(dst, `","columnDefinitions":`...)
	if t.headers { // false in a watch after the first event
		dst = append(dst, t.version.ColumnDefinitions()...)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"kind":"Table","metadata":`...)
	if revision == 0 && token == "" {
		dst = append(dst, `{}`...)
	} else {
		dst = append(dst, listMeta(revision, token, remaining, false)...)
	}
	return append(dst, `,"rows":[`...)
}

// appendSingle appends a Table of one row.
func (t *Table) appendSingle(dst []byte, o record.Object) ([]byte, error) {
	dst = append(dst, t.head(o.Revision, "", nil)...)
	dst, err := t.appendRow(dst, o)
	return append(dst, "]}"...), err
}

// refresh sets the time from which ages are computed to the current time.
func (t *Table) refresh() {
	t.now, t.lastTimestamp, t.lastAge = time.Now(), "", append(t.lastAge[:0], `"\u003cunknown\u003e"`...)
}

// appendRow appends the row of one object.
func (t *Table) appendRow(dst []byte, o record.Object) ([]byte, error) {
	if t.version.Printer != nil {
		return t.appendPrinted(dst, o)
	}
	object.Fields(o.Packed().JSON(), t.paths, t.values)
	var tree object.Tree
	if t.needsTree {
		var err error
		if tree, err = o.Tree(); err != nil {
			return dst, apierrors.NewInternalError(err)
		}
	}
	dst = append(dst, `{"cells":[`...)
	for i := range t.version.Columns {
		if i > 0 {
			dst = append(dst, ',')
		}
		c := &t.version.Columns[i]
		if p := t.pathIndex[i]; p >= 0 {
			dst = t.appendField(dst, c, t.values[p])
		} else {
			dst = t.appendCell(dst, c, c.Cell(tree))
		}
	}
	return t.appendObject(append(dst, ']'), o), nil
}

// appendPrinted appends the row that the Printer of the kind returns.
func (t *Table) appendPrinted(dst []byte, o record.Object) ([]byte, error) {
	row, err := metav1.TableRow{}, error(nil)
	if t.emptyRow {
		row, err = t.version.EmptyRow()
	} else {
		row, err = t.version.Row(o.Packed().JSON())
	}
	if err != nil {
		return dst, apierrors.NewInternalError(err)
	}
	dst = append(dst, `{"cells":`...)
	cells, err := json.Marshal(row.Cells)
	if err != nil {
		return dst, apierrors.NewInternalError(err)
	}
	dst = append(dst, cells...)
	if len(row.Conditions) > 0 {
		conditions, err := json.Marshal(row.Conditions)
		if err != nil {
			return dst, apierrors.NewInternalError(err)
		}
		dst = append(append(dst, `,"conditions":`...), conditions...)
	}
	return t.appendObject(dst, o), nil
}

// appendObject ends a row with the part of the object that the client requests.
func (t *Table) appendObject(dst []byte, o record.Object) []byte {
	dst = append(dst, `,"object":`...)
	switch t.include {
	case metav1.IncludeNone:
		dst = append(dst, "null"...)
	case metav1.IncludeObject:
		dst = o.AppendJSON(dst)
	default:
		dst = appendPartial(dst, o, t.form)
	}
	return append(dst, '}')
}

// appendField appends the cell of a column that is a plain field. raw is the JSON of the field, or nil.
func (t *Table) appendField(dst []byte, c *resource.Column, raw []byte) []byte {
	switch {
	case c.Age && c.Type == "string" && (raw == nil || raw[0] == 'n'): // custom kinds have the type date
		return append(dst, `"\u003cunknown\u003e"`...)
	case raw == nil && c.Format == "name":
		return append(dst, `""`...)
	case raw == nil:
		return append(dst, "null"...)
	}
	text := raw[0] == '"'
	switch {
	case c.Age && text && bytes.IndexByte(raw, '\\') < 0:
		if raw = raw[1 : len(raw)-1]; string(raw) == t.lastTimestamp {
			return append(dst, t.lastAge...)
		}
		return t.appendAge(dst, string(raw))
	case c.Type == "string" && text, c.Type == "boolean" && (raw[0] == 't' || raw[0] == 'f'):
		return append(dst, raw...)
	case c.Type == "integer" && isInteger(raw):
		return append(dst, raw...)
	}
	var v any
	if kjson.UnmarshalCaseSensitivePreserveInts(raw, &v) != nil {
		return append(dst, "null"...)
	}
	return t.appendCell(dst, c, c.Value(v))
}

// isInteger reports whether raw is a JSON integer of at most 18 characters, which always fits in an int64.
func isInteger(raw []byte) bool {
	if len(raw) > 18 {
		return false
	}
	for i, c := range raw {
		if (c < '0' || c > '9') && (c != '-' || i > 0) {
			return false
		}
	}
	return true
}

// appendCell appends the value of a computed column.
func (t *Table) appendCell(dst []byte, c *resource.Column, v any) []byte {
	if text, ok := v.(string); ok && c.Age {
		return t.appendAge(dst, text)
	}
	return object.AppendJSON(dst, v)
}

// appendAge appends the age of a timestamp in human-readable form.
func (t *Table) appendAge(dst []byte, text string) []byte {
	start := len(dst)
	at, err := time.Parse(time.RFC3339, text)
	switch {
	case text == "", text == "null", err == nil && at.IsZero(): // like upstream, "null" for old clients
		dst = append(dst, `"\u003cunknown\u003e"`...)
	case err != nil:
		dst = append(dst, `"\u003cinvalid\u003e"`...)
	default:
		dst = append(append(append(dst, '"'), duration.HumanDuration(t.now.Sub(at))...), '"')
	}
	t.lastTimestamp, t.lastAge = text, append(t.lastAge[:0], dst[start:]...)
	return dst
}
