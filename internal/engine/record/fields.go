package record

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// fieldValues are the values of the selectable fields at one version.
type fieldValues struct {
	version *resource.Version
	values  []string
}

// Fields returns a record's selectable fields at the view's version, or nil if the record cannot be converted. paths
// are the paths of these fields.
func (r View) Fields(rec *storage.Record, paths [][]string) []string {
	d := derive(rec)
	if f := d.fields.Load(); f != nil && f.version == r.Version {
		return f.values
	}
	o, err := r.Read(context.Background(), rec) // calls no webhook, because Preconvert has done so
	if err != nil {
		return nil
	}
	f := &fieldValues{r.Version, make([]string, len(paths))}
	raw := make([][]byte, len(paths))
	object.Fields(o.Packed().JSON(), paths, raw)
	for i := range raw {
		f.values[i] = selectorText(raw[i])
	}
	for i, selectable := range r.Version.SelectableFields {
		if f.values[i] == "" && selectable.Fallback != "" {
			if fallback := FieldIndex(r.Version, selectable.Fallback); fallback >= 0 {
				f.values[i] = f.values[fallback]
			}
		}
		if f.values[i] == "" {
			f.values[i] = selectable.Zero
		}
	}
	d.fields.Store(f)
	return f.values
}

// FieldIndex returns the index of a selectable field, or -1.
func FieldIndex(v *resource.Version, name string) int {
	return slices.IndexFunc(v.SelectableFields, func(f resource.SelectableField) bool { return f.Name == name })
}

// selectorText returns the value of a selectable field in the form that selectors use. If the field is not set, it
// returns "".
func selectorText(raw []byte) string {
	if len(raw) == 0 || string(raw) == "null" {
		return ""
	}
	if raw[0] != '"' && !bytes.ContainsAny(raw, ".eE{[") || raw[0] == 't' || raw[0] == 'f' {
		return string(raw)
	}
	var value any // a string, or in an old object any other value
	if json.Unmarshal(raw, &value) != nil {
		return ""
	}
	return fmt.Sprint(value)
}
