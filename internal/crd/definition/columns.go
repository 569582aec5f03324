package definition

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/util/jsonpath"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// printerColumn is an entry of additionalPrinterColumns in a CRD.
type printerColumn struct {
	name, typ, format, description, jsonPath string
	priority                                 int32
}

func readPrinterColumns(c *object.Cursor) (all []printerColumn) {
	c.Elements(func(int) {
		var p printerColumn
		c.Fields(map[string]any{"name": &p.name, "type": &p.typ, "format": &p.format, "description": &p.description,
			"jsonPath": &p.jsonPath, "priority": &p.priority})
		all = append(all, p)
	})
	return all
}

// defaultColumns returns the columns of a version that specifies none. They are shared.
var defaultColumns = sync.OnceValue(func() []resource.Column {
	return []resource.Column{resource.NameColumn(), resource.AgeColumn("date")}
})

// compileColumns compiles columns and adds the name column in front. If a JSONPath is invalid, it omits this column
// and all later columns, as upstream does.
func compileColumns(printers []printerColumn) []resource.Column {
	all := make([]resource.Column, 1, len(printers)+1)
	all[0] = resource.NameColumn()
	for _, p := range printers {
		col := resource.Column{
			Name: p.name, Type: p.typ, Format: p.format, Description: p.description, Priority: p.priority,
			Age: p.typ == "date",
		}
		if col.Description == "" {
			col.Description = "Custom resource definition column (in JSONPath format): " + p.jsonPath
		}
		if path, ok := parsePlainPath(p.jsonPath); ok && storedAsServed(path) {
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

// storedAsServed reports whether the field at path has the same value in the stored bytes and in the served object.
func storedAsServed(path []string) bool {
	switch path[0] {
	case "apiVersion":
		return false
	case "metadata":
		return len(path) > 1 && path[1] != "resourceVersion"
	}
	return true
}

// parsePlainPath splits a JSONPath that consists only of field names. A dot after a backslash belongs to the name.
// ok is false for any other JSONPath.
func parsePlainPath(s string) ([]string, bool) {
	if len(s) < 2 || s[0] != '.' || strings.ContainsAny(s, " \t\r\n,[]$@{}*") ||
		!strings.Contains(s, `\`) && strings.Contains(s, "..") {
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

// pathCell computes a column's cells by a JSONPath. The JSONPath is compiled when the first cell is requested.
type pathCell struct {
	column   resource.Column
	jsonPath string

	mu    sync.Mutex           // protects paths, which have state during an evaluation
	paths []*jsonpath.JSONPath // parts of the JSONPath between its wildcards; an empty part is nil
	bad   bool
}

// newPathCell returns nil if the JSONPath is invalid. A JSONPath that matches wellFormedPath is valid, and is
// compiled on first use. Other JSONPaths are rare and are compiled immediately.
func newPathCell(p printerColumn) *pathCell {
	cell := &pathCell{column: resource.Column{Type: p.typ}, jsonPath: p.jsonPath}
	if !wellFormedPath().MatchString(p.jsonPath) && !cell.compile() {
		return nil
	}
	return cell
}

// wellFormedPath matches JSONPaths of names, indexes, wildcards and filters. A filter compares a field with a
// string.
var wellFormedPath = sync.OnceValue(func() *regexp.Regexp {
	const name, text = `[A-Za-z0-9_/-]+`, `[^"'\\()\[\]{}\n]*`
	return regexp.MustCompile(`^\.` + name + `(\.` + name + `|\[([0-9]{1,9}|\*|'` + name + `'` +
		`|\?\(@(\.` + name + `)+==("` + text + `"|'` + text + `')\))\])*$`)
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

// splitAtWildcards splits a JSONPath at its wildcards, which are the names "*". A longer name such as "*<" is not a
// wildcard.
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

// results returns the values at a JSONPath, which is split at its wildcards. The members of an object are in the
// order of their keys. The library would use a random order.
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

// find returns the values at a JSONPath that has no wildcards. If path is nil, it returns v itself, which may be
// null.
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
