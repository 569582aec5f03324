package schema

import (
	"slices"
	"strconv"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Prune removes the unknown fields of t. It returns their sorted paths, at most maxProblems. The paths have the form
// of upstream's strict decoding, such as "spec.foo" and "spec.ports[0].bar". Prune does not change apiVersion, kind
// and metadata of t and of every embedded resource.
//
// A node with x-kubernetes-preserve-unknown-fields keeps its unknown fields. Values that match its properties,
// additionalProperties or items are pruned by these schemas.
func (s *Schema) Prune(t object.Tree) (unknown []string) { return s.prune(t).unknown.all }

func (s *Schema) prune(t object.Tree) (p pruner) {
	if s.preserve {
		return p
	}
	root := s.root
	if root == nil {
		root = &node{}
	}
	p.fields(t, root, true, root.preserve)
	slices.Sort(p.unknown.all)
	return p
}

// step is one element of the path to a value. The path is formatted only for removed fields.
type step struct {
	key   string
	index int // -1 means that key is used
}

type pruner struct {
	path    []step
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
func (p *paths) full() bool { return len(p.all) >= maxProblems || p.bytes >= maxMessageBytes }

func (p *paths) add(path string) {
	p.all = append(p.all, path)
	p.bytes += len(path)
}

func isTypeOrMeta(key string) bool {
	return key == "metadata" || key == "kind" || key == "apiVersion"
}

func (p *pruner) remove(t object.Tree, key string) {
	delete(t, key)
	if p.unknown.full() {
		return
	}
	var out []byte
	for _, s := range append(p.path, step{key: key, index: -1}) {
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
func (p *pruner) value(v any, n *node) {
	switch v := v.(type) {
	case object.Tree:
		if n != nil {
			p.fields(v, n, n.embedded, n.preserve)
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
func (p *pruner) below(s step, v any, n *node) {
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
func (p *pruner) fields(t object.Tree, n *node, embedded, preserve bool) {
	for k, v := range t {
		if embedded && isTypeOrMeta(k) {
			p.nulls = p.nulls || len(p.path) > 0 // nulls in metadata are handled elsewhere
			continue
		}
		if child, ok := n.properties[k]; ok {
			p.below(step{k, -1}, v, child)
		} else if n.additional != nil {
			p.below(step{k, -1}, v, n.additional.schema)
		} else if !preserve {
			p.remove(t, k)
		}
	}
}

func (p *pruner) list(v []any, n *node) {
	var items *node
	if n != nil {
		items = n.items
	}
	if n != nil && n.preserve {
		p.preservedList(v, items)
		return
	}
	for i := range v {
		p.below(step{index: i}, v[i], items)
	}
}

// preservedList prunes the items of a list that preserves unknown fields. Unknown fields of the items are preserved
// too.
func (p *pruner) preservedList(v []any, items *node) {
	if items == nil {
		return
	}
	for i := range v {
		p.path = append(p.path, step{index: i})
		switch e := v[i].(type) {
		case object.Tree:
			p.fields(e, items, items.embedded, true)
		case []any:
			p.preservedList(e, items.items)
		}
		p.path = p.path[:len(p.path)-1]
	}
}
