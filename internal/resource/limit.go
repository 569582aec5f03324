package resource

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

// ItemLimit bounds how many items an object may have in some of its lists, maps and selectors. It protects code that compares each item with each
// other and cannot be interrupted.
type ItemLimit struct {
	field *field.Path
	paths [][]string // counted together
	most  int
}

// NewItemLimit returns a limit on the items of all paths together. A path consists of field names with dots between them; "*" stands for
// every item of a list or map. Errors name the first path.
func NewItemLimit(most int, paths ...string) ItemLimit {
	l := ItemLimit{most: most}
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
		n += count(t, p)
	}
	if n > l.most {
		return field.TooMany(l.field, n, l.most)
	}
	return nil
}

// count returns the number of items at a path below v.
func count(v any, path []string) (n int) {
	if len(path) == 0 {
		return size(v)
	}
	if path[0] != "*" {
		m, _ := v.(object.Tree)
		return count(m[path[0]], path[1:])
	}
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			n += count(item, path[1:])
		}
	case object.Tree:
		for _, item := range v {
			n += count(item, path[1:])
		}
	}
	return n
}

// size returns the number of items of a list or map, and of the requirements of a selector in text form.
func size(v any) int {
	switch v := v.(type) {
	case []any:
		return len(v)
	case object.Tree:
		return len(v)
	case string:
		return requirements(v)
	}
	return 0
}

// requirements returns the number of requirements of a selector: commas that stand in parentheses separate values.
func requirements(selector string) (n int) {
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
