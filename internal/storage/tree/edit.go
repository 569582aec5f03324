package tree

// owner identifies the nodes that one Editor has created and may modify in place.
type owner struct{ _ byte }

// Editor derives a new Tree from an existing one. It copies each node on the first change, so many
// changes in one Editor cost less than one Editor per change. It must be used by one goroutine at a time.
type Editor[V any] struct {
	root  *node[V]
	owner *owner
}

// Edit returns an editor that starts from t. t itself never changes.
func (t Tree[V]) Edit() *Editor[V] { return &Editor[V]{root: t.root, owner: new(owner)} }

// Tree returns the current state. The editor may be used further.
func (e *Editor[V]) Tree() Tree[V] {
	e.owner = new(owner) // nodes of the returned tree must not change any more
	return Tree[V]{e.root}
}

// Get is Tree.Get on the current state.
func (e *Editor[V]) Get(key string) (V, bool) { return Tree[V]{e.root}.Get(key) }

// Newest is Tree.Newest on the current state.
func (e *Editor[V]) Newest(prefix string) (V, int64) { return Tree[V]{e.root}.Newest(prefix) }

// Put sets the value of key.
func (e *Editor[V]) Put(key string, version int64, value V) {
	if e.root == nil {
		e.root = &node[V]{owner: e.owner}
	}
	e.root = e.own(e.root)
	e.put(e.root, entry[V]{key, version, value})
	if e.root.size() > maxEntries {
		left := e.root
		right := e.split(left)
		e.root = &node[V]{owner: e.owner, bounds: []string{"", right.lowerBound()}, children: []*node[V]{left, right}}
		e.root.summarize()
	}
}

// Delete removes key and reports whether it existed.
func (e *Editor[V]) Delete(key string) bool {
	if _, ok := e.Get(key); !ok {
		return false
	}
	e.root = e.own(e.root)
	e.remove(e.root, key)
	for !e.root.leaf() && len(e.root.children) == 1 {
		e.root = e.root.children[0]
	}
	if e.root.count == 0 {
		e.root = nil
	}
	return true
}

// own returns n if this editor has created it, or else a copy.
func (e *Editor[V]) own(n *node[V]) *node[V] {
	if n.owner == e.owner {
		return n
	}
	c := *n
	c.owner = e.owner
	if n.leaf() {
		c.entries = append(make([]entry[V], 0, len(n.entries)+1), n.entries...)
	} else {
		c.bounds = append(make([]string, 0, len(n.bounds)+1), n.bounds...)
		c.children = append(make([]*node[V], 0, len(n.children)+1), n.children...)
	}
	return &c
}

// put sets an entry below n, which the editor owns. It may leave n with one slot more than maxEntries.
func (e *Editor[V]) put(n *node[V], x entry[V]) (added int, replaced int64) {
	if n.leaf() {
		i := n.find(x.key)
		if i < len(n.entries) && n.entries[i].key == x.key {
			replaced = n.entries[i].version
			n.entries[i] = x
		} else {
			n.entries = insert(n.entries, i, x)
			added = 1
		}
	} else {
		i := n.child(x.key)
		k := e.own(n.children[i])
		n.children[i] = k
		added, replaced = e.put(k, x)
		if k.size() > maxEntries {
			right := e.split(k)
			n.children = insert(n.children, i+1, right)
			n.bounds = insert(n.bounds, i+1, right.lowerBound())
		}
	}
	n.count += added
	if replaced == n.newest && x.version < replaced {
		n.summarize()
	}
	n.newest = max(n.newest, x.version)
	return added, replaced
}

// remove deletes an existing key below n, which the editor owns.
func (e *Editor[V]) remove(n *node[V], key string) (removed int64) {
	if n.leaf() {
		i := n.find(key)
		removed = n.entries[i].version
		n.entries = cut(n.entries, i)
	} else {
		i := n.child(key)
		k := e.own(n.children[i])
		n.children[i] = k
		removed = e.remove(k, key)
		if k.size() < minEntries && len(n.children) > 1 {
			e.balance(n, i)
		}
	}
	n.count--
	if removed == n.newest {
		n.summarize()
	}
	return removed
}

// balance merges child i of n, which has too few entries, with a neighbour. If the result is too big, balance
// splits it evenly.
func (e *Editor[V]) balance(n *node[V], i int) {
	if i == len(n.children)-1 {
		i--
	}
	left, right := e.own(n.children[i]), n.children[i+1]
	n.children[i] = left
	if left.leaf() {
		left.entries = append(left.entries, right.entries...)
	} else {
		at := len(left.bounds)
		left.bounds = append(left.bounds, right.bounds...)
		left.bounds[at] = n.bounds[i+1] // replaces bounds[0] of right, which may be inexact
		left.children = append(left.children, right.children...)
	}
	left.summarize()
	n.children = cut(n.children, i+1)
	n.bounds = cut(n.bounds, i+1)
	if left.size() > maxEntries {
		right = e.split(left)
		n.children = insert(n.children, i+1, right)
		n.bounds = insert(n.bounds, i+1, right.lowerBound())
	}
}

// split moves the upper half of n into a new node and returns it.
func (e *Editor[V]) split(n *node[V]) *node[V] {
	half := n.size() / 2
	r := &node[V]{owner: e.owner}
	if n.leaf() {
		r.entries = append(make([]entry[V], 0, maxEntries/2+2), n.entries[half:]...)
		clear(n.entries[half:])
		n.entries = n.entries[:half]
	} else {
		r.bounds = append([]string(nil), n.bounds[half:]...)
		r.children = append([]*node[V](nil), n.children[half:]...)
		clear(n.children[half:])
		n.bounds, n.children = n.bounds[:half], n.children[:half]
	}
	n.summarize()
	r.summarize()
	return r
}

// lowerBound returns a lower bound of the keys below n that is greater than all keys of its left neighbour.
func (n *node[V]) lowerBound() string {
	if n.leaf() {
		return n.entries[0].key
	}
	return n.bounds[0]
}

// insert puts x at index i, reusing s.
func insert[T any](s []T, i int, x T) []T {
	var zero T
	s = append(s, zero)
	copy(s[i+1:], s[i:])
	s[i] = x
	return s
}

// cut removes index i, reusing s.
func cut[T any](s []T, i int) []T {
	var zero T
	copy(s[i:], s[i+1:])
	s[len(s)-1] = zero
	return s[:len(s)-1]
}
