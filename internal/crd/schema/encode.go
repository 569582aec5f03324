package schema

import (
	"bytes"
	"maps"
	"slices"
	"strconv"

	"github.com/trellis-k8s/trellis/internal/object"
)

// AppendJSON appends the JSON of n. The keywords are sorted by name.
func (n *Node) AppendJSON(dst []byte) []byte { return encoder{}.node(dst, n) }

// AppendMembers appends the keywords of n that are in the set as the members of a JSON object, without braces. It omits
// empty values if upstream's Go type omits them.
func (n *Node) AppendMembers(dst []byte, set Keywords) []byte {
	return encoder{omitEmpty: true}.members(dst, n, n.Set&set)
}

// Value returns the JSON of a keyword, or "" if it is not set. n may be nil.
func (n *Node) Value(keyword string) JSON {
	i := findKeyword(keyword, 0)
	if n == nil || i < 0 || n.Set&(1<<i) == 0 {
		return ""
	}
	return JSON(encoder{}.value(nil, keywords[i].field(n)))
}

// EqualJSON reports whether two nodes, which may be nil, have the same JSON. An empty value equals a missing one if
// upstream's Go type omits it.
func EqualJSON(a, b *Node) bool {
	if a == nil || b == nil {
		return a == b
	}
	e := encoder{omitEmpty: true}
	return bytes.Equal(e.node(nil, a), e.node(nil, b))
}

type encoder struct{ omitEmpty bool }

func (e encoder) node(dst []byte, n *Node) []byte {
	return append(e.members(append(dst, '{'), n, n.Set), '}')
}

func (e encoder) members(dst []byte, n *Node, set Keywords) []byte {
	first := true
	for i := range set.indices() {
		field := keywords[i].field(n)
		if e.omitEmpty && isEmpty(field) {
			continue
		}
		dst = e.value(e.key(dst, keywords[i].name, &first), field)
	}
	return dst
}

// key appends the key of a member. *first is true for the first member of an object.
func (e encoder) key(dst []byte, name string, first *bool) []byte {
	if !*first {
		dst = append(dst, ',')
	}
	*first = false
	return append(object.AppendString(dst, name), ':')
}

func (e encoder) value(dst []byte, field any) []byte {
	switch p := field.(type) {
	case *string:
		return object.AppendString(dst, *p)
	case *optionalText:
		return object.AppendString(dst, string(*p))
	case *bool:
		return strconv.AppendBool(dst, *p)
	case *optionalFlag:
		return strconv.AppendBool(dst, bool(*p))
	case **int64:
		return strconv.AppendInt(dst, **p, 10)
	case **float64:
		if *p != nil {
			return object.AppendJSON(dst, **p)
		}
	case *[]string:
		return e.texts(dst, *p)
	case *JSON:
		return append(dst, *p...)
	case *docs:
		return append(dst, *p...)
	case *copiedText:
		return append(dst, *p...)
	case *Rules:
		if *p == "" {
			return append(dst, "[]"...)
		}
		return append(dst, *p...)
	case **Enumeration:
		if *p == nil {
			return append(dst, "[]"...)
		}
		return append(dst, (*p).Text...)
	case **Pattern:
		if *p == nil {
			return append(dst, `""`...)
		}
		return object.AppendString(dst, (*p).Text)
	default:
		return e.schemas(dst, field)
	}
	return append(dst, "null"...)
}

func (e encoder) texts(dst []byte, texts []string) []byte {
	dst = append(dst, '[')
	for i, text := range texts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = object.AppendString(dst, text)
	}
	return append(dst, ']')
}

func (e encoder) schemas(dst []byte, field any) []byte {
	switch p := field.(type) {
	case **Node:
		if *p != nil {
			return e.node(dst, *p)
		}
	case *[]*Node:
		return e.nodes(dst, *p)
	case *items:
		if p.Items == nil {
			return e.nodes(dst, (*Node)(p).Others().ItemSchemas)
		}
		return e.node(dst, p.Items)
	case *map[string]*Node:
		first := true
		dst = append(dst, '{')
		for _, name := range slices.Sorted(maps.Keys(*p)) {
			dst = e.node(e.key(dst, name, &first), (*p)[name])
		}
		return append(dst, '}')
	case **AdditionalProperties:
		switch {
		case *p == nil:
		case (*p).Schema != nil:
			return e.node(dst, (*p).Schema)
		default:
			return strconv.AppendBool(dst, (*p).Allows)
		}
	case *map[string]*Dependency:
		first := true
		dst = append(dst, '{')
		for _, name := range slices.Sorted(maps.Keys(*p)) {
			dst = e.key(dst, name, &first)
			if d := (*p)[name]; d.Schema != nil {
				dst = e.node(dst, d.Schema)
			} else {
				dst = append(dst, d.Names...)
			}
		}
		return append(dst, '}')
	}
	return append(dst, "null"...)
}

func (e encoder) nodes(dst []byte, list []*Node) []byte {
	dst = append(dst, '[')
	for i, n := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = e.node(dst, n)
	}
	return append(dst, ']')
}
