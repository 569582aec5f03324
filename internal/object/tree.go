package object

import "strconv"

// Copy returns a deep copy of t; nil stays nil.
func Copy(t Tree) Tree {
	if t == nil {
		return nil
	}
	out := make(Tree, len(t))
	for k, v := range t {
		out[k] = CopyValue(v)
	}
	return out
}

// CopyValue is Copy for any value of a tree.
func CopyValue(v any) any {
	switch v := v.(type) {
	case Tree:
		return Copy(v)
	case []any:
		if v == nil {
			return v
		}
		out := make([]any, len(v))
		for i := range v {
			out[i] = CopyValue(v[i])
		}
		return out
	default:
		return v
	}
}

// Equal reports whether two values of trees are deeply equal: an int64 and a
// float64 never are, nor is a missing key and one set to nil.
func Equal(a, b any) bool {
	switch a := a.(type) {
	case Tree:
		b, ok := b.(Tree)
		return ok && equalTrees(a, b)
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !Equal(a[i], b[i]) {
				return false
			}
		}
		return true
	case string:
		b, ok := b.(string)
		return ok && a == b
	case int64:
		b, ok := b.(int64)
		return ok && a == b
	case bool:
		b, ok := b.(bool)
		return ok && a == b
	case float64:
		b, ok := b.(float64)
		return ok && a == b
	default:
		return a == nil && b == nil
	}
}

func equalTrees(a, b Tree) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		w, ok := b[k]
		if !ok || !Equal(v, w) {
			return false
		}
	}
	return true
}

// WholeNumbers puts integers in place of the numbers in v that are written as such, so that v is what is read of its JSON.
// It modifies v, and returns it, or what stands in its place.
func WholeNumbers(v any) any {
	switch v := v.(type) {
	case float64:
		if i, err := strconv.ParseInt(string(appendFloat(nil, v)), 10, 64); err == nil {
			return i
		}
	case Tree:
		for key, value := range v {
			switch value.(type) {
			case float64, Tree, []any:
				v[key] = WholeNumbers(value)
			}
		}
	case []any:
		for i := range v {
			v[i] = WholeNumbers(v[i])
		}
	}
	return v
}
