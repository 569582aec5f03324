package tree

// owner marks the nodes that one Editor has made and may change in place.
type owner struct{ _ byte }

// Editor makes a new Tree out of an old one. It copies a node the first time it
// changes it, so many changes in one Editor cost less than one each in many.
// It is used by one goroutine.
type Editor[V any] struct {
	root  *node[V]
	owner *owner
}

// Edit starts a change; t itself never changes.
func (t Tree[V]) Edit() *Editor[V] { return &Editor[V]{root: t.root, owner: new(owner)} }

// Tree returns the state so far. The editor may be used on.
func (e *Editor[V]) Tree() Tree[V] {
	e.owner = new(owner) // what has been handed out is frozen
	return Tree[V]{e.root}
}

// Get is Tree.Get on the state so far.
func (e *Editor[V]) Get(key string) (V, bool) { return Tree[V]{e.root}.Get(key) }

// Newest is Tree.Newest on the state so far.
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
		e.root = &node[V]{owner: e.owner, firsts: []string{"", right.least()}, kids: []*node[V]{left, right}}
		e.root.sum()
	}
}

// Delete removes key and says whether it was there.
func (e *Editor[V]) Delete(key string) bool {
	if _, ok := e.Get(key); !ok {
		return false
	}
	e.root = e.own(e.root)
	e.remove(e.root, key)
	for !e.root.leaf() && len(e.root.kids) == 1 {
		e.root = e.root.kids[0]
	}
	if e.root.count == 0 {
		e.root = nil
	}
	return true
}

// own returns n if this editor made it, else a copy.
func (e *Editor[V]) own(n *node[V]) *node[V] {
	if n.owner == e.owner {
		return n
	}
	c := *n
	c.owner = e.owner
	if n.leaf() {
		c.entries = append(make([]entry[V], 0, len(n.entries)+1), n.entries...)
	} else {
		c.firsts = append(make([]string, 0, len(n.firsts)+1), n.firsts...)
		c.kids = append(make([]*node[V], 0, len(n.kids)+1), n.kids...)
	}
	return &c
}

// put sets an entry below n, which the editor owns, and may leave n one too big.
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
		k := e.own(n.kids[i])
		n.kids[i] = k
		added, replaced = e.put(k, x)
		if k.size() > maxEntries {
			right := e.split(k)
			n.kids = insert(n.kids, i+1, right)
			n.firsts = insert(n.firsts, i+1, right.least())
		}
	}
	n.count += added
	if replaced == n.newest && x.version < replaced {
		n.sum()
	}
	n.newest = max(n.newest, x.version)
	return added, replaced
}

// remove deletes a key that exists below n, which the editor owns.
func (e *Editor[V]) remove(n *node[V], key string) (removed int64) {
	if n.leaf() {
		i := n.find(key)
		removed = n.entries[i].version
		n.entries = cut(n.entries, i)
	} else {
		i := n.child(key)
		k := e.own(n.kids[i])
		n.kids[i] = k
		removed = e.remove(k, key)
		if k.size() < minEntries && len(n.kids) > 1 {
			e.balance(n, i)
		}
	}
	n.count--
	if removed == n.newest {
		n.sum()
	}
	return removed
}

// balance joins kid i of n, which has too few entries, with a neighbour, and
// splits the two evenly if one node cannot hold both.
func (e *Editor[V]) balance(n *node[V], i int) {
	if i == len(n.kids)-1 {
		i--
	}
	left, right := e.own(n.kids[i]), n.kids[i+1]
	n.kids[i] = left
	if left.leaf() {
		left.entries = append(left.entries, right.entries...)
	} else {
		at := len(left.firsts)
		left.firsts = append(left.firsts, right.firsts...)
		left.firsts[at] = n.firsts[i+1] // firsts[0] of a node is not kept exact
		left.kids = append(left.kids, right.kids...)
	}
	left.sum()
	n.kids = cut(n.kids, i+1)
	n.firsts = cut(n.firsts, i+1)
	if left.size() > maxEntries {
		right = e.split(left)
		n.kids = insert(n.kids, i+1, right)
		n.firsts = insert(n.firsts, i+1, right.least())
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
		r.firsts = append([]string(nil), n.firsts[half:]...)
		r.kids = append([]*node[V](nil), n.kids[half:]...)
		clear(n.kids[half:])
		n.firsts, n.kids = n.firsts[:half], n.kids[:half]
	}
	n.sum()
	r.sum()
	return r
}

// least is a lower bound of the keys below n, good enough to part it from its
// left neighbour.
func (n *node[V]) least() string {
	if n.leaf() {
		return n.entries[0].key
	}
	return n.firsts[0]
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
