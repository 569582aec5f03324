package kinds

import "github.com/trellis-k8s/trellis/internal/object"

// The readers below take a tree that went through its Go type, so that a field
// is either absent, null or of its own type.

// value returns what lies at path, or nil.
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

// child returns the map at t[name], made if it is not there.
func child(t object.Tree, name string) object.Tree {
	m, ok := t[name].(object.Tree)
	if !ok {
		m = object.Tree{}
		t[name] = m
	}
	return m
}

// copyField gives obj the field of old, or removes it where old has none.
func copyField(obj, old object.Tree, name string) {
	if v, ok := old[name]; ok {
		obj[name] = v
	} else {
		delete(obj, name)
	}
}
