package object

import "strconv"

// Copy returns a deep copy of t. The copy of nil is nil.
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

// CopyValue returns a deep copy of any value of a tree.
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

// Equal reports whether two values of trees are deeply equal. An int64 never equals a float64, and a missing key
// never equals a key with the value nil.
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

// NormalizeNumbers replaces each float64 in v by an int64 if its JSON is an integer literal. The result equals the
// value that DecodeJSON returns for the JSON of v. NormalizeNumbers modifies and returns v. If v itself is a
// number, it returns the replacement.
func NormalizeNumbers(v any) any {
	switch v := v.(type) {
	case float64:
		if i, err := strconv.ParseInt(string(appendFloat(nil, v)), 10, 64); err == nil {
			return i
		}
	case Tree:
		for key, value := range v {
			switch value.(type) {
			case float64, Tree, []any:
				v[key] = NormalizeNumbers(value)
			}
		}
	case []any:
		for i := range v {
			v[i] = NormalizeNumbers(v[i])
		}
	}
	return v
}
