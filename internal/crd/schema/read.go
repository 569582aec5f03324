package schema

import (
	"strconv"
	"strings"

	"github.com/trellis-k8s/trellis/internal/object"
)

// reader reads the nodes of one schema and shares equal patterns among them.
type reader struct {
	*object.Cursor
	patterns map[string]*Pattern
	below    traits // traits of the schemas that have been read below the current node
}

// node reads the schema at the cursor. It returns nil if the value is not an object. A keyword that is null counts as
// missing.
func (r *reader) node() *Node {
	if r.Kind() != '{' {
		return nil
	}
	n, beside, next := &Node{}, r.below, 0
	r.below = 0
	r.Members(func(key string) {
		i := findKeyword(key, next)
		if i >= 0 && r.Kind() != 'n' {
			n.Set |= 1 << i
			r.value(keywords[i].field(n))
			next = i + 1
		}
	})
	if n.Embedded && n.Type == "" && !n.IntOrString {
		n.Type = "object" // upstream requires an explicit type
	}
	n.Types = TypesOf(n)
	if f := FormatOf(n); f != 0 {
		n.EnsureChecks().Format = f
	}
	n.Traits = n.ownTraits() | r.below
	r.below = beside | n.Traits
	return n
}

// value reads the value at the cursor into a field of a Node.
func (r *reader) value(field any) {
	switch p := field.(type) {
	case *string:
		*p = r.Text()
	case *optionalText:
		*p = optionalText(r.Text())
	case *bool:
		*p = r.Bool()
	case *optionalFlag:
		*p = optionalFlag(r.Bool())
	case **int64:
		v := r.Int()
		*p = &v
	case **float64:
		if v, err := strconv.ParseFloat(r.Raw(), 64); err == nil {
			*p = &v
		}
	case *[]string:
		*p = r.Texts()
	case *JSON:
		*p = JSON(r.Raw())
	case *docs:
		*p = docs(r.Raw())
	case *copiedText:
		*p = copiedText(r.Raw())
	case *Rules:
		*p = Rules(r.list())
	case **Enumeration:
		if text := r.list(); text != "" {
			*p = &Enumeration{Text: text}
		}
	case **Pattern:
		*p = r.pattern(r.Text())
	default:
		r.schemas(field)
	}
}

// schemas reads one or more schemas into a field of a Node.
func (r *reader) schemas(field any) {
	switch p := field.(type) {
	case **Node:
		*p = r.node()
	case *[]*Node:
		*p = r.nodes()
	case *items:
		if r.Kind() == '[' {
			(*Node)(p).ensureRare().ItemSchemas = r.nodes()
		} else {
			p.Items = r.node()
		}
	case *map[string]*Node:
		*p = r.named()
	case **AdditionalProperties:
		switch r.Kind() {
		case '{':
			*p = &AdditionalProperties{Schema: r.node(), Allows: true}
		case 't', 'f':
			*p = &AdditionalProperties{Allows: r.Bool()}
		}
	case *map[string]*Dependency:
		*p = map[string]*Dependency{}
		r.Members(func(name string) {
			d := &Dependency{Schema: r.node()}
			if d.Schema == nil {
				d.Names = JSON(r.Raw())
			}
			(*p)[name] = d
		})
	}
}

// nodes reads a list of schemas. A null item allows every value.
func (r *reader) nodes() (list []*Node) {
	r.Elements(func(int) {
		n := r.node()
		if n == nil {
			n = &Node{}
		}
		list = append(list, n)
	})
	return list
}

// named reads an object with schemas. It returns nil for other values.
func (r *reader) named() map[string]*Node {
	if r.Kind() != '{' {
		return nil
	}
	all := map[string]*Node{}
	r.Members(func(name string) {
		if child := r.node(); child != nil {
			all[name] = child
		}
	})
	return all
}

func (r *reader) pattern(text string) *Pattern {
	if text == "" {
		return nil
	}
	p := r.patterns[text]
	if p == nil {
		if r.patterns == nil {
			r.patterns = map[string]*Pattern{}
		}
		p = &Pattern{Text: text}
		r.patterns[text] = p
	}
	return p
}

// list returns the JSON of a non-empty array, or "".
func (r *reader) list() string {
	raw := r.Raw()
	if inner, ok := strings.CutPrefix(raw, "["); !ok || strings.TrimSpace(inner) == "]" {
		return ""
	}
	return raw
}
