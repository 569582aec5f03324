package resource

import (
	"bytes"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/jsonpath"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Value is what a cell of the column shows for the value that lies at Path: the
// value itself if it is of the column's type, nil otherwise; a "string" column prints
// whatever there is, and a "date" column (Age) gives the timestamp as it stands. A field that is
// not there is nil and not passed here. It is the rule for a CRD's additionalPrinterColumns
// (KEP-2600, upstream's tableconvertor).
func (c *Column) Value(v any) any {
	if c.Type == "string" {
		return printed(v)
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

// printed is v as a JSONPath template prints it.
func printed(v any) any {
	if s, ok := v.(string); ok {
		return s
	}
	var out bytes.Buffer
	if err := jsonpath.New("").PrintResults(&out, []reflect.Value{reflect.ValueOf(v)}); err != nil {
		return nil
	}
	return out.String()
}

// printerColumn is one of additionalPrinterColumns as it is written.
type printerColumn struct {
	name, typ, format, description, jsonPath string
	priority                                 int32
}

func readPrinterColumns(c *object.Cursor) []printerColumn {
	var all []printerColumn
	c.Elements(func(int) {
		var p printerColumn
		c.Members(func(key string) {
			switch key {
			case "name":
				p.name = c.Text()
			case "type":
				p.typ = c.Text()
			case "format":
				p.format = c.Text()
			case "description":
				p.description = c.Text()
			case "jsonPath":
				p.jsonPath = c.Text()
			case "priority":
				p.priority = int32(c.Int())
			}
		})
		all = append(all, p)
	})
	return all
}

var metaDoc = sync.OnceValue(func() map[string]string { return metav1.ObjectMeta{}.SwaggerDoc() })

// defaultColumns are those of a version that names none. They are shared.
var defaultColumns = sync.OnceValue(func() []Column {
	return compileColumns([]printerColumn{{
		name: "Age", typ: "date", description: metaDoc()["creationTimestamp"], jsonPath: ".metadata.creationTimestamp",
	}})
})

// ScaleColumns are those of the Scale that every /scale of a custom kind shows, or of a built-in one.
func ScaleColumns(builtin bool) []Column {
	all := compileColumns([]printerColumn{
		{name: "Desired", typ: "integer", description: "Number of desired replicas", jsonPath: ".spec.replicas"},
		{name: "Available", typ: "integer", description: "Number of actual replicas", jsonPath: ".status.replicas"},
		{name: "Age", typ: "date", description: metaDoc()["creationTimestamp"], jsonPath: ".metadata.creationTimestamp"},
	})
	if builtin {
		all[0].Format, all[3].Type = "", "string"
		all[1].Description, all[2].Description = autoscalingv1.ScaleSpec{}.SwaggerDoc()["replicas"], autoscalingv1.ScaleStatus{}.SwaggerDoc()["replicas"]
	}
	return all
}

// compileColumns makes columns, the name first. From a JSONPath that cannot be
// read on they are left out, as upstream does.
func compileColumns(printers []printerColumn) []Column {
	all := make([]Column, 1, len(printers)+1)
	all[0] = Column{Name: "Name", Type: "string", Format: "name", Description: metaDoc()["name"], Path: []string{"metadata", "name"}}
	for _, p := range printers {
		col := Column{Name: p.name, Type: p.typ, Format: p.format, Description: p.description, Priority: p.priority, Age: p.typ == "date"}
		if col.Description == "" {
			col.Description = "Custom resource definition column (in JSONPath format): " + p.jsonPath
		}
		if path, ok := plainPath(p.jsonPath); ok && storedAsServed(path) {
			col.Path = path
		} else if cell := newPathCell(p); cell != nil {
			col.Cell = cell.value
		} else {
			break
		}
		all = append(all, col)
	}
	return all
}

// storedAsServed is false of what the bytes of an object do not hold, or not as it is served.
func storedAsServed(path []string) bool {
	switch path[0] {
	case "apiVersion":
		return false
	case "metadata":
		return len(path) > 1 && path[1] != "resourceVersion"
	}
	return true
}

// Printer makes Tables of a kind that k8s.io/kubernetes prints.
type Printer struct {
	Columns func() []metav1.TableColumnDefinition
	// Row is the row of an object, its Object left out. Ages in it are words as of now: it is not to be kept.
	Row func(obj Internal) (metav1.TableRow, error)
	// Blank is an object without defaults, which a BOOKMARK of a watch shows.
	Blank func() (Internal, error)
}

// BlankRow is the row of an object without defaults; of a version that has a Printer.
func (v *Version) BlankRow() (metav1.TableRow, error) {
	obj, err := v.Printer.Blank()
	if err != nil {
		return metav1.TableRow{}, err
	}
	return v.Printer.Row(obj)
}

// Row is the row of an object whose JSON this is; of a version that has a Printer.
func (v *Version) Row(json []byte) (metav1.TableRow, error) {
	obj, err := v.Type.Load(json)
	if err != nil {
		return metav1.TableRow{}, err
	}
	return v.Printer.Row(obj)
}

// ColumnDefinitions is the JSON of the columns as a Table defines them. It is shared: nobody modifies it.
func (v *Version) ColumnDefinitions() []byte {
	if known := v.columnDefinitions.Load(); known != nil {
		return *known
	}
	var all []any
	add := func(name, typ, format, description string, priority int32) {
		all = append(all, object.Tree{"name": name, "type": typ, "format": format, "description": description, "priority": int64(priority)})
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

// plainPath splits a JSONPath that is nothing but field names. A backslash stands
// before a dot that belongs to the name.
func plainPath(s string) ([]string, bool) {
	if len(s) < 2 || s[0] != '.' || strings.ContainsAny(s, " \t\r\n,[]$@{}*") || !strings.Contains(s, `\`) && strings.Contains(s, "..") {
		return nil, false
	}
	if !strings.Contains(s, `\`) {
		path := strings.Split(s[1:], ".")
		return path, path[len(path)-1] != ""
	}
	var path []string
	var name []byte
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s) && s[i+1] < 0x80:
			i++
			if s[i] != '\\' {
				name = append(name, s[i])
			}
		case s[i] == '\\', s[i] == '.' && len(name) == 0:
			return nil, false
		case s[i] == '.':
			path, name = append(path, string(name)), nil
		default:
			name = append(name, s[i])
		}
	}
	return append(path, string(name)), len(name) > 0
}

// pathCell finds the value of a column by a JSONPath that is compiled when the
// first cell is asked for.
type pathCell struct {
	column   Column
	jsonPath string

	mu    sync.Mutex           // protects paths, which have state during an evaluation
	paths []*jsonpath.JSONPath // parts of the JSONPath between its wildcards; nil for an empty part
	bad   bool
}

// newPathCell returns nil for an invalid JSONPath. It compiles only paths that do not match usualPath. Almost all paths
// match it and are compiled on first use.
func newPathCell(p printerColumn) *pathCell {
	cell := &pathCell{column: Column{Type: p.typ}, jsonPath: p.jsonPath}
	if !usualPath().MatchString(p.jsonPath) && !cell.compile() {
		return nil
	}
	return cell
}

// usualPath matches paths of names, indexes, wildcards, and filters by one string.
var usualPath = sync.OnceValue(func() *regexp.Regexp {
	const name, text = `[A-Za-z0-9_/-]+`, `[^"'\\()\[\]{}\n]*`
	return regexp.MustCompile(`^\.` + name + `(\.` + name + `|\[([0-9]{1,9}|\*|'` + name + `'|\?\(@(\.` + name + `)+==("` + text + `"|'` + text + `')\))\])*$`)
})

func (p *pathCell) compile() bool {
	if p.paths != nil || p.bad {
		return !p.bad
	}
	parts := []string{p.jsonPath}
	if !strings.ContainsAny(p.jsonPath, `'"?\`) && !strings.Contains(p.jsonPath, "..") {
		parts = splitAtWildcards(p.jsonPath)
	}
	p.bad = len(parts) > 1 && jsonpath.New("").Parse("{"+p.jsonPath+"}") != nil
	for _, part := range parts {
		if part == "" && len(parts) > 1 {
			p.paths = append(p.paths, nil)
			continue
		}
		path := jsonpath.New("").AllowMissingKeys(true)
		p.bad = p.bad || path.Parse("{"+part+"}") != nil
		p.paths = append(p.paths, path)
	}
	return !p.bad
}

// splitAtWildcards returns the parts of a JSONPath between the names "*". A longer name such as "*<" is no wildcard.
func splitAtWildcards(path string) (parts []string) {
	start := 0
	for i := 0; i+1 < len(path); i++ {
		if path[i:i+2] == ".*" && (i+2 == len(path) || path[i+2] == '.' || path[i+2] == '[') {
			parts = append(parts, path[start:i])
			start = i + 2
		}
	}
	return append(parts, path[start:])
}

func (p *pathCell) value(t object.Tree) any {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.compile() {
		return nil
	}
	found, err := results(p.paths, t)
	if err != nil || len(found) == 0 {
		return nil
	}
	return p.column.Value(found[0])
}

// results returns the values at a JSONPath, which is split at its wildcards. The members of an object are in the order of
// their keys. The library would use a random order.
func results(paths []*jsonpath.JSONPath, v any) (found []any, err error) {
	values, err := find(paths[0], v)
	if err != nil || len(paths) == 1 {
		return values, err
	}
	for _, value := range values {
		for _, e := range elements(value) {
			below, err := results(paths[1:], e)
			if err != nil {
				return nil, err
			}
			found = append(found, below...)
		}
	}
	return found, nil
}

// find returns the values at a JSONPath without wildcards. nil returns v itself, which can be null.
func find(path *jsonpath.JSONPath, v any) (values []any, err error) {
	if path == nil {
		return []any{v}, nil
	}
	if v == nil {
		return nil, nil
	}
	lists, err := path.FindResults(v)
	if err != nil || len(lists) == 0 {
		return nil, err
	}
	for _, r := range lists[0] {
		if r.IsValid() {
			values = append(values, r.Interface())
		}
	}
	return values, nil
}

// elements returns the values that a wildcard selects.
func elements(v any) (all []any) {
	switch v := v.(type) {
	case object.Tree:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			all = append(all, v[key])
		}
	case []any:
		return v
	case string: // upstream selects all bytes, but a cell shows only the first value
		if v != "" {
			return []any{v[0]}
		}
	}
	return all
}
