package object

// The functions below read the value at a path of field names. A value that is absent or of another type reads as the
// zero value.

// At returns the value at path, or nil.
func At(t Tree, path ...string) any {
	var v any = t
	for _, name := range path {
		m, _ := v.(Tree)
		v = m[name]
	}
	return v
}

// StringAt returns the string at path.
func StringAt(t Tree, path ...string) string {
	s, _ := At(t, path...).(string)
	return s
}

// TreeAt returns the object at path.
func TreeAt(t Tree, path ...string) Tree {
	m, _ := At(t, path...).(Tree)
	return m
}

// ListAt returns the list at path.
func ListAt(t Tree, path ...string) []any {
	l, _ := At(t, path...).([]any)
	return l
}

// TreesAt returns the objects in the list at path. An element that is not an object is nil.
func TreesAt(t Tree, path ...string) (all []Tree) {
	for _, v := range ListAt(t, path...) {
		m, _ := v.(Tree)
		all = append(all, m)
	}
	return all
}

// IsTrue reports whether the value at path is true.
func IsTrue(t Tree, path ...string) bool {
	b, _ := At(t, path...).(bool)
	return b
}

// Condition returns the condition of a type in a status, or nil.
func Condition(status Tree, kind string) Tree {
	for _, v := range ListAt(status, "conditions") {
		if c, _ := v.(Tree); c["type"] == kind {
			return c
		}
	}
	return nil
}

// HasCondition reports whether the condition of a type in a status is True.
func HasCondition(status Tree, kind string) bool { return Condition(status, kind)["status"] == "True" }

// EnsureTree returns the object at t[key]. It sets it to an empty object if it does not exist.
func EnsureTree(t Tree, key string) Tree {
	m, _ := t[key].(Tree)
	if m == nil {
		m = Tree{}
		t[key] = m
	}
	return m
}
