package schema

import (
	"iter"
	"math/bits"
)

// keyword is a keyword of schemas.
type keyword struct {
	name string
	// field returns a pointer to the field of a Node that holds the keyword. The type of the pointer determines how
	// the keyword is read, written and compared.
	field func(n *Node) any
}

// Types of fields for which the type of the Go field is not sufficient.
type (
	items        Node   // a Node whose keyword items is a schema or a list of schemas
	optionalText string // a string for which "" differs from a missing keyword
	optionalFlag bool   // a boolean for which false differs from a missing keyword
	copiedText   JSON   // a long string that is only copied, so it is not decoded
)

// Keywords is a set of keywords. Bit i stands for keywords[i].
type Keywords uint64

var keywordIndex = func() map[string]int {
	index := map[string]int{}
	for i := range keywords {
		index[keywords[i].name] = i
	}
	return index
}()

// findKeyword returns the index of a keyword, or -1. The keywords of a stored schema are sorted, so the search starts
// at the index next, which follows the previous keyword.
func findKeyword(name string, next int) int {
	for i := next; i < len(keywords); i++ {
		if keywords[i].name == name {
			return i
		}
	}
	if i, ok := keywordIndex[name]; ok {
		return i
	}
	return -1
}

// SetOf returns the set of the keywords with the given names, which must exist.
func SetOf(names ...string) (set Keywords) {
	for _, name := range names {
		i, ok := keywordIndex[name]
		if !ok {
			panic("schema: unknown keyword " + name)
		}
		set |= 1 << i
	}
	return set
}

// indices returns the indices of the keywords in the set, in increasing order.
func (set Keywords) indices() iter.Seq[int] {
	return func(yield func(int) bool) {
		for ; set != 0; set &= set - 1 {
			if !yield(bits.TrailingZeros64(uint64(set))) {
				return
			}
		}
	}
}

// NonEmpty returns the keywords of n whose values are not empty, as upstream's Go type encodes them.
func (n *Node) NonEmpty() Keywords {
	set := n.Set
	for i := range n.Set.indices() {
		if isEmpty(keywords[i].field(n)) {
			set &^= 1 << i
		}
	}
	return set
}

// isEmpty reports whether the Go type of upstream omits the keyword in the given field.
func isEmpty(field any) bool {
	switch p := field.(type) {
	case *string:
		return *p == ""
	case *copiedText:
		return *p == `""`
	case *bool:
		return !*p
	case *[]string:
		return len(*p) == 0
	case *Rules:
		return *p == ""
	case **Enumeration:
		return *p == nil
	case **Pattern:
		return *p == nil
	case *[]*Node:
		return len(*p) == 0
	case *map[string]*Node:
		return len(*p) == 0
	case *map[string]*Dependency:
		return len(*p) == 0
	case *items:
		return p.Items == nil && len((*Node)(p).Others().ItemSchemas) == 0
	}
	return false
}
