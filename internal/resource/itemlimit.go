package resource

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

// ItemLimit limits the number of items in some lists, maps and selectors of an object. It protects code that
// compares all pairs of items and cannot be interrupted.
type ItemLimit struct {
	field *field.Path // path in errors
	paths [][]string  // the limit applies to the sum over these paths
	limit int
}

// NewItemLimit returns a limit on the total number of items at all paths. A path consists of field names separated
// by dots. "*" means every item of a list or map. Errors name the first path.
func NewItemLimit(limit int, paths ...string) ItemLimit {
	l := ItemLimit{limit: limit}
	for _, p := range paths {
		l.paths = append(l.paths, strings.Split(p, "."))
	}
	for _, name := range l.paths[0] {
		if name == "*" {
			l.field = l.field.Key(name)
		} else {
			l.field = l.field.Child(name)
		}
	}
	return l
}

// Check returns an error if t exceeds the limit, nil otherwise.
func (l *ItemLimit) Check(t object.Tree) *field.Error {
	n := 0
	for _, p := range l.paths {
		n += countAt(t, p)
	}
	if n > l.limit {
		return field.TooMany(l.field, n, l.limit)
	}
	return nil
}

// countAt returns the number of items at a path below v.
func countAt(v any, path []string) (n int) {
	if len(path) == 0 {
		return countItems(v)
	}
	if path[0] != "*" {
		m, _ := v.(object.Tree)
		return countAt(m[path[0]], path[1:])
	}
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			n += countAt(item, path[1:])
		}
	case object.Tree:
		for _, item := range v {
			n += countAt(item, path[1:])
		}
	}
	return n
}

// countItems returns the number of items of a list or map, or the number of requirements of a selector in text
// form.
func countItems(v any) int {
	switch v := v.(type) {
	case []any:
		return len(v)
	case object.Tree:
		return len(v)
	case string:
		return countRequirements(v)
	}
	return 0
}

// countRequirements returns the number of requirements of a selector. Commas in parentheses separate values, not
// requirements.
func countRequirements(selector string) (n int) {
	if selector == "" {
		return 0
	}
	n = 1
	open := false
	for i := range len(selector) {
		switch selector[i] {
		case '(', ')':
			open = selector[i] == '('
		case ',':
			if !open {
				n++
			}
		}
	}
	return n
}
