package schema

import (
	"slices"
	"strconv"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Prune removes the unknown fields of t. It returns their paths, sorted, and at most maxProblems of them. Upstream's strict decoding
// names them alike ("spec.foo", "spec.ports[0].bar"). apiVersion, kind and metadata of t and of every embedded resource stay.
//
// A property below x-kubernetes-preserve-unknown-fields keeps its fields. If such a node has properties, additionalProperties or
// items, their own schemas prune those.
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

// step is one element of the path to a value; the path is only put together
// for what is removed.
type step struct {
	key   string
	index int // -1: key counts
}

type pruner struct {
	path    []step
	unknown paths
	nulls   bool // there may be nulls that have to go
}

// paths lists the first unknown fields, within the limits of a walk. Upstream's list grows with the length of a path times the
// number of fields.
type paths struct {
	all     []string
	wording int
}

// full reports whether the list takes no more paths.
func (p *paths) full() bool { return len(p.all) >= maxProblems || p.wording >= maxWording }

func (p *paths) add(path string) {
	p.all = append(p.all, path)
	p.wording += len(path)
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

// value prunes v by n; a nil n knows no fields.
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

// below prunes a value one step down.
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

// fields prunes what n names, and removes the others unless they are kept.
func (p *pruner) fields(t object.Tree, n *node, embedded, keep bool) {
	for k, v := range t {
		if embedded && isTypeOrMeta(k) {
			p.nulls = p.nulls || len(p.path) > 0 // in its metadata, which is not looked at
			continue
		}
		if child, ok := n.properties[k]; ok {
			p.below(step{k, -1}, v, child)
		} else if n.additional != nil {
			p.below(step{k, -1}, v, n.additional.schema)
		} else if !keep {
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
		p.keptList(v, items)
		return
	}
	for i := range v {
		p.below(step{index: i}, v[i], items)
	}
}

// keptList goes on in every element, whose fields are kept too.
func (p *pruner) keptList(v []any, items *node) {
	if items == nil {
		return
	}
	for i := range v {
		p.path = append(p.path, step{index: i})
		switch e := v[i].(type) {
		case object.Tree:
			p.fields(e, items, items.embedded, true)
		case []any:
			p.keptList(e, items.items)
		}
		p.path = p.path[:len(p.path)-1]
	}
}
