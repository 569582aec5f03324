package defaulting

import (
	"slices"
	"strconv"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// Prune removes the unknown fields of t. It returns their sorted paths, at most maxProblems. The paths have the form
// of upstream's strict decoding, such as "spec.foo" and "spec.ports[0].bar". Prune does not change apiVersion, kind
// and metadata of t and of every embedded resource.
//
// A node with x-kubernetes-preserve-unknown-fields keeps its unknown fields. Values that match its properties,
// additionalProperties or items are pruned by these schemas.
func (z *Normalizer) Prune(t object.Tree) (unknown []string) { return z.prune(t).unknown.all }

func (z *Normalizer) prune(t object.Tree) (p pruner) {
	if z.Schema.Preserve {
		return p
	}
	root := z.Schema.Root
	if root == nil {
		root = &schema.Node{}
	}
	p.fields(t, root, true, root.Preserve)
	slices.Sort(p.unknown.all)
	return p
}

// Step is one element of the path to a value.
type Step struct {
	key   string
	index int // -1 means that key is used
}

// Field returns the step to the field with a name.
func Field(name string) Step { return Step{name, -1} }

// Item is the step to an item of a list.
var Item = Step{}

// HasUnknownFields reports whether a value has fields that are unknown in its schema n.
func HasUnknownFields(v any, n *schema.Node) bool {
	p := pruner{}
	p.value(object.CopyValue(v), n)
	return len(p.unknown.all) > 0
}

// pruner removes unknown fields.
type pruner struct {
	path    []Step
	unknown paths
	nulls   bool // the object may contain nulls that must be dropped
}

// paths holds the paths of the first unknown fields, up to the limits of a walk. Without these limits, the size of
// the list would be the length of a path times the number of fields.
type paths struct {
	all   []string
	bytes int
}

// full reports whether the limits are reached.
func (p *paths) full() bool {
	return len(p.all) >= schema.MaxProblems || p.bytes >= schema.MaxMessageBytes
}

func (p *paths) add(path string) {
	p.all = append(p.all, path)
	p.bytes += len(path)
}

func (p *pruner) remove(t object.Tree, key string) {
	delete(t, key)
	if p.unknown.full() {
		return
	}
	var out []byte
	for _, s := range append(p.path, Field(key)) {
		if s.index >= 0 {
			out = append(strconv.AppendInt(append(out, '['), int64(s.index), 10), ']')
			continue
		}
		if len(out) > 0 {
			out = append(out, '.')
		}
		out = append(out, s.key...)
	}
	p.unknown.add(string(out))
}

// value prunes v by the schema n. If n is nil, all fields of v are unknown.
func (p *pruner) value(v any, n *schema.Node) {
	switch v := v.(type) {
	case object.Tree:
		if n != nil {
			p.fields(v, n, n.Embedded, n.Preserve)
			break
		}
		for k := range v {
			p.remove(v, k)
		}
	case []any:
		p.list(v, n)
	}
}

// below prunes a value one step below the current path.
func (p *pruner) below(s Step, v any, n *schema.Node) {
	switch v.(type) {
	case nil:
		p.nulls = true
	case object.Tree, []any:
		p.path = append(p.path, s)
		p.value(v, n)
		p.path = p.path[:len(p.path)-1]
	}
}

// fields prunes the known fields of t. It removes unknown fields unless preserve is true.
func (p *pruner) fields(t object.Tree, n *schema.Node, embedded, preserve bool) {
	for k, v := range t {
		if embedded && schema.IsTypeOrMeta(k) {
			p.nulls = p.nulls || len(p.path) > 0 // nulls in metadata are handled elsewhere
			continue
		}
		if child, ok := n.Properties[k]; ok {
			p.below(Field(k), v, child)
		} else if n.Additional != nil {
			p.below(Field(k), v, n.Additional.Schema)
		} else if !preserve {
			p.remove(t, k)
		}
	}
}

func (p *pruner) list(v []any, n *schema.Node) {
	var items *schema.Node
	if n != nil {
		items = n.Items
	}
	if n != nil && n.Preserve {
		p.preservedList(v, items)
		return
	}
	for i := range v {
		p.below(Step{index: i}, v[i], items)
	}
}

// preservedList prunes the items of a list that preserves unknown fields. Unknown fields of the items are preserved
// too.
func (p *pruner) preservedList(v []any, items *schema.Node) {
	if items == nil {
		return
	}
	for i := range v {
		p.path = append(p.path, Step{index: i})
		switch e := v[i].(type) {
		case object.Tree:
			p.fields(e, items, items.Embedded, true)
		case []any:
			p.preservedList(e, items.Items)
		}
		p.path = p.path[:len(p.path)-1]
	}
}
