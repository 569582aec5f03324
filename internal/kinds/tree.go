package kinds

import "github.com/trellis-k8s/trellis/internal/object"

// The accessors below expect a tree that was decoded by its Go type. In such a tree, each field is absent, null or of
// the correct type.

// value returns the value at path, or nil.
func value(t object.Tree, path ...string) any {
	var v any = t
	for _, name := range path {
		m, _ := v.(object.Tree)
		v = m[name]
	}
	return v
}

func text(t object.Tree, path ...string) string {
	s, _ := value(t, path...).(string)
	return s
}

func tree(t object.Tree, path ...string) object.Tree {
	m, _ := value(t, path...).(object.Tree)
	return m
}

func list(t object.Tree, path ...string) []any {
	l, _ := value(t, path...).([]any)
	return l
}

func isTrue(t object.Tree, path ...string) bool {
	b, _ := value(t, path...).(bool)
	return b
}

// child returns the object at t[name], and creates it if it does not exist.
func child(t object.Tree, name string) object.Tree {
	m, ok := t[name].(object.Tree)
	if !ok {
		m = object.Tree{}
		t[name] = m
	}
	return m
}

// copyField sets a field of obj to its value in old. If old lacks the field, copyField deletes it from obj.
func copyField(obj, old object.Tree, name string) {
	if v, ok := old[name]; ok {
		obj[name] = v
	} else {
		delete(obj, name)
	}
}
