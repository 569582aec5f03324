package resource

import (
	"bytes"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/jsonpath"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Value returns the cell of the column for the value at Path. It returns a value of the column's type unchanged,
// and nil for any other value. A "string" column prints any value. A "date" column (Age) returns the timestamp as
// text. The caller must not pass nil, which is the value of a missing field. Value implements upstream's rule for a
// CRD's additionalPrinterColumns (KEP-2600, package tableconvertor).
func (c *Column) Value(v any) any {
	if c.Type == "string" {
		return jsonPathText(v)
	}
	switch typed := v.(type) {
	case int64:
		switch c.Type {
		case "integer":
			return typed
		case "number":
			return float64(typed)
		}
	case float64:
		switch c.Type {
		case "integer":
			return int64(typed)
		case "number":
			return typed
		}
	case bool:
		if c.Type == "boolean" {
			return typed
		}
	case string:
		if c.Type == "date" {
			return typed
		}
	}
	return nil
}

// jsonPathText returns v as a JSONPath template prints it. It returns nil if v cannot be printed.
func jsonPathText(v any) any {
	if s, ok := v.(string); ok {
		return s
	}
	var out bytes.Buffer
	if err := jsonpath.New("").PrintResults(&out, []reflect.Value{reflect.ValueOf(v)}); err != nil {
		return nil
	}
	return out.String()
}

// NameColumn returns the column Name.
func NameColumn() Column {
	return Column{Name: "Name", Type: "string", Format: "name", Description: metaDoc()["name"],
		Path: []string{"metadata", "name"}}
}

// AgeColumn returns the column Age. Its type is "string" for built-in kinds and "date" for custom kinds.
func AgeColumn(typ string) Column {
	return Column{Name: "Age", Type: typ, Age: true, Description: metaDoc()["creationTimestamp"],
		Path: []string{"metadata", "creationTimestamp"}}
}

var metaDoc = sync.OnceValue(func() map[string]string { return metav1.ObjectMeta{}.SwaggerDoc() })

// Printer creates Tables for a kind with a printer in k8s.io/kubernetes.
type Printer struct {
	Columns func() []metav1.TableColumnDefinition
	// Row returns the row of an object without the row's Object. The row must not be retained, because its ages are
	// texts relative to the current time.
	Row func(obj Internal) (metav1.TableRow, error)
	// Empty returns an object without defaults, which is the object in a BOOKMARK of a watch.
	Empty func() (Internal, error)
}

// EmptyRow returns the row of an object without defaults. The version must have a Printer.
func (v *Version) EmptyRow() (metav1.TableRow, error) {
	obj, err := v.Printer.Empty()
	if err != nil {
		return metav1.TableRow{}, err
	}
	return v.Printer.Row(obj)
}

// Row returns the row of an object from its JSON. The version must have a Printer.
func (v *Version) Row(json []byte) (metav1.TableRow, error) {
	obj, err := v.Type.Load(json)
	if err != nil {
		return metav1.TableRow{}, err
	}
	return v.Printer.Row(obj)
}

// ColumnDefinitions returns the JSON of the columns in the form of a Table's columnDefinitions. It is shared and
// must not be modified.
func (v *Version) ColumnDefinitions() []byte {
	if cached := v.columnDefinitions.Load(); cached != nil {
		return *cached
	}
	var all []any
	add := func(name, typ, format, description string, priority int32) {
		all = append(all, object.Tree{
			"name": name, "type": typ, "format": format, "description": description, "priority": int64(priority),
		})
	}
	for i := range v.Columns {
		c := &v.Columns[i]
		add(c.Name, c.Type, c.Format, c.Description, c.Priority)
	}
	if v.Printer != nil {
		for _, c := range v.Printer.Columns() {
			add(c.Name, c.Type, c.Format, c.Description, c.Priority)
		}
	}
	js := object.AppendJSON(nil, all)
	v.columnDefinitions.Store(&js)
	return js
}
