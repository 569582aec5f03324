package tree

import "strings"

// Diff yields, in key order, the values of t and of an older tree for each key below prefix whose versions
// differ, until yield returns false. A missing key yields the zero V. Diff skips nodes that both trees
// share, so its cost is proportional to the number of changes.
func (t Tree[V]) Diff(older Tree[V], prefix string, yield func(old, current V) bool) {
	diff(older.root, t.root, prefix, yield)
}

// diff does not allocate if no key was added or deleted.
func diff[V any](a, b *node[V], prefix string, yield func(old, current V) bool) bool {
	if a == b {
		return true
	}
	if a == nil || b == nil || a.leaf() || b.leaf() {
		return merge(a.slice(prefix), b.slice(prefix), yield)
	}
	more := true
	for i, j := a.child(prefix), b.child(prefix); more; {
		k, l := commonBound(a.bounds, b.bounds, i+1, j+1)
		if k == i+1 && l == j+1 {
			more = diff(a.children[i], b.children[j], prefix, yield)
		} else { // children have been split or merged
			more = merge(slice(a.children[i:k], prefix), slice(b.children[j:l], prefix), yield)
		}
		if i, j = k, l; i == len(a.children) || !strings.HasPrefix(a.bounds[i], prefix) {
			break
		}
	}
	return more
}

// commonBound returns the first indexes, from i and j on, at which two inner nodes have the same bound.
// If there are none, it returns the lengths of both.
func commonBound(a, b []string, i, j int) (int, int) {
	for i < len(a) && j < len(b) {
		switch {
		case a[i] < b[j]:
			i++
		case b[j] < a[i]:
			j++
		default:
			return i, j
		}
	}
	return len(a), len(b)
}

// slice returns the entries whose keys start with prefix, in order.
func (n *node[V]) slice(prefix string) []entry[V] {
	switch {
	case n == nil:
		return nil
	case !n.leaf():
		first := n.child(prefix)
		last := first + 1
		for last < len(n.children) && strings.HasPrefix(n.bounds[last], prefix) {
			last++
		}
		return slice(n.children[first:last], prefix)
	}
	start := n.find(prefix)
	end := start
	for end < len(n.entries) && strings.HasPrefix(n.entries[end].key, prefix) {
		end++
	}
	return n.entries[start:end]
}

// slice does the same for several adjacent nodes.
func slice[V any](nodes []*node[V], prefix string) (out []entry[V]) {
	for _, k := range nodes {
		out = append(out, k.slice(prefix)...)
	}
	return out
}

// merge yields the differences between two sorted lists of entries.
func merge[V any](a, b []entry[V], yield func(old, current V) bool) bool {
	var none V
	for len(a) > 0 || len(b) > 0 {
		old, current := none, none
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].key < b[0].key:
			old, a = a[0].value, a[1:]
		case len(a) == 0 || b[0].key < a[0].key:
			current, b = b[0].value, b[1:]
		default:
			same := a[0].version == b[0].version
			old, current, a, b = a[0].value, b[0].value, a[1:], b[1:]
			if same {
				continue
			}
		}
		if !yield(old, current) {
			return false
		}
	}
	return true
}

// Part returns a tree for later use as the older tree of Diff with the same prefix. It contains the keys below
// prefix and few others, and shares nodes with t.
func (t Tree[V]) Part(prefix string) Tree[V] { return Tree[V]{part(t.root, prefix)} }

func part[V any](n *node[V], prefix string) *node[V] {
	if n == nil || n.leaf() {
		return n
	}
	// The number of children must not change, because diff matches the bounds of both nodes.
	children := make([]*node[V], len(n.children))
	first := n.child(prefix)
	last := first
	for last+1 < len(children) && strings.HasPrefix(n.bounds[last+1], prefix) {
		last++
	}
	copy(children[first:], n.children[first:last+1])
	children[first] = part(children[first], prefix) // this child may also hold other keys
	if last > first {
		children[last] = part(children[last], prefix)
	}
	return &node[V]{bounds: n.bounds, children: children}
}
