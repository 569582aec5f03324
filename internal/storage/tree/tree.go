// Package tree implements a persistent ordered map: an immutable B+ tree from string keys to versioned
// values. For any range, it returns the number of keys and the most recently changed one in logarithmic
// time. It must not import anything about records, logs or disks.
//
// A Tree is a value. Reading needs no lock and never observes a change. Edit copies the path from the
// root to the changed leaf and shares all other nodes.
package tree

// Nodes hold at most maxEntries slots. All except the root hold at least minEntries.
const (
	maxEntries = 32
	minEntries = maxEntries / 4
)

// Tree is an immutable map. The zero value is empty.
type Tree[V any] struct{ root *node[V] }

// entry is a key of a leaf with its value.
type entry[V any] struct {
	key     string
	version int64
	value   V
}

// node is a leaf or an inner node. A leaf has no children. bounds[i] is a lower bound of the keys below
// children[i] and greater than all keys below children[i-1].
type node[V any] struct {
	owner    *owner
	count    int   // number of keys below
	newest   int64 // greatest version below
	entries  []entry[V]
	bounds   []string
	children []*node[V]
}

func (n *node[V]) leaf() bool { return n.children == nil }

// size returns the number of used slots.
func (n *node[V]) size() int {
	if n.leaf() {
		return len(n.entries)
	}
	return len(n.children)
}

// find returns the index of the first entry of a leaf whose key is not less than key.
func (n *node[V]) find(key string) int {
	lo, hi := 0, len(n.entries)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if n.entries[mid].key < key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// child returns the index of the child that holds key, if any does.
func (n *node[V]) child(key string) int {
	lo, hi := 1, len(n.bounds)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if n.bounds[mid] <= key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// summarize recomputes count and newest from the node's own entries or children.
func (n *node[V]) summarize() {
	n.count, n.newest = 0, 0
	if n.leaf() {
		n.count = len(n.entries)
		for i := range n.entries {
			n.newest = max(n.newest, n.entries[i].version)
		}
		return
	}
	for _, k := range n.children {
		n.count += k.count
		n.newest = max(n.newest, k.newest)
	}
}

// Len returns the number of keys.
func (t Tree[V]) Len() int {
	if t.root == nil {
		return 0
	}
	return t.root.count
}

// Get returns the value of key. It inlines find and child because every read of a single object calls it.
func (t Tree[V]) Get(key string) (value V, ok bool) {
	n := t.root
	if n == nil {
		return value, false
	}
	for n.children != nil {
		lo, hi := 1, len(n.bounds)
		for lo < hi {
			if mid := int(uint(lo+hi) >> 1); n.bounds[mid] <= key {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		n = n.children[lo-1]
	}
	lo, hi := 0, len(n.entries)
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); n.entries[mid].key < key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(n.entries) && n.entries[lo].key == key {
		return n.entries[lo].value, true
	}
	return value, false
}

// Walk yields, in key order, the values of the keys that start with prefix and are greater than after, until yield
// returns false.
func (t Tree[V]) Walk(prefix, after string, yield func(V) bool) {
	if t.root != nil {
		end, bounded := prefixEnd(prefix)
		t.root.walk(walkStart(prefix, after), end, bounded, yield)
	}
}

// walkStart returns the first key of a walk: prefix, or the successor of after.
func walkStart(prefix, after string) string {
	if after != "" && after >= prefix {
		return after + "\x00"
	}
	return prefix
}

// walk yields the values of the keys in [from, to).
func (n *node[V]) walk(from, to string, bounded bool, yield func(V) bool) bool {
	if n.leaf() {
		for i := n.find(from); i < len(n.entries); i++ {
			if bounded && n.entries[i].key >= to || !yield(n.entries[i].value) {
				return false
			}
		}
		return true
	}
	lo, hi := n.child(from), len(n.children)-1
	if bounded {
		hi = n.child(to)
	}
	for i := lo; i <= hi; i++ {
		more := false
		if i == lo || i == hi && bounded {
			more = n.children[i].walk(from, to, bounded, yield)
		} else {
			more = n.children[i].walkAll(yield) // all keys are in range
		}
		if !more {
			return false
		}
	}
	return true
}

// walkAll yields every value below n.
func (n *node[V]) walkAll(yield func(V) bool) bool {
	for i := range n.entries {
		if !yield(n.entries[i].value) {
			return false
		}
	}
	for _, k := range n.children {
		if !k.walkAll(yield) {
			return false
		}
	}
	return true
}

// Newer yields, in key order, the values of the keys below prefix whose version is greater than version,
// until yield returns false. It skips nodes without such keys.
func (t Tree[V]) Newer(prefix string, version int64, yield func(V) bool) {
	if t.root != nil {
		end, bounded := prefixEnd(prefix)
		t.root.newer(prefix, end, bounded, version, yield)
	}
}

// newer yields the values of the keys in [from, to) with a greater version.
func (n *node[V]) newer(from, to string, bounded bool, version int64, yield func(V) bool) bool {
	if n.newest <= version {
		return true
	}
	if n.leaf() {
		for i := n.find(from); i < len(n.entries); i++ {
			e := &n.entries[i]
			if bounded && e.key >= to || e.version > version && !yield(e.value) {
				return false
			}
		}
		return true
	}
	hi := len(n.children) - 1
	if bounded {
		hi = n.child(to)
	}
	for i := n.child(from); i <= hi; i++ {
		if !n.children[i].newer(from, to, bounded, version, yield) {
			return false
		}
	}
	return true
}

// Count returns the number of values that Walk(prefix, after) yields, in logarithmic time.
func (t Tree[V]) Count(prefix, after string) int {
	if t.root == nil {
		return 0
	}
	hi := t.root.count
	if end, bounded := prefixEnd(prefix); bounded {
		hi = t.root.rank(end)
	}
	return max(0, hi-t.root.rank(walkStart(prefix, after)))
}

// rank returns the number of keys below n that are less than key.
func (n *node[V]) rank(key string) int {
	r := 0
	for !n.leaf() {
		i := n.child(key)
		for _, k := range n.children[:i] {
			r += k.count
		}
		n = n.children[i]
	}
	return r + n.find(key)
}

// Newest returns, in logarithmic time, the value with the greatest version below prefix, and that version. The
// version is 0 if there are no keys.
func (t Tree[V]) Newest(prefix string) (value V, version int64) {
	if t.root == nil {
		return value, 0
	}
	end, bounded := prefixEnd(prefix)
	if e := t.root.latest(prefix, end, bounded); e != nil {
		return e.value, e.version
	}
	return value, 0
}

// latest returns the entry with the greatest version in [from, to).
func (n *node[V]) latest(from, to string, bounded bool) *entry[V] {
	var best *entry[V]
	if n.leaf() {
		for i := n.find(from); i < len(n.entries); i++ {
			e := &n.entries[i]
			if bounded && e.key >= to {
				break
			}
			if best == nil || e.version > best.version {
				best = e
			}
		}
		return best
	}
	lo, hi := n.child(from), len(n.children)-1
	if bounded {
		hi = n.child(to)
	}
	var inner *node[V] // the newest of the children that are entirely in range
	for i := lo; i <= hi; i++ {
		k := n.children[i]
		if i == lo || i == hi && bounded {
			if e := k.latest(from, to, bounded); e != nil && (best == nil || e.version > best.version) {
				best = e
			}
		} else if inner == nil || k.newest > inner.newest {
			inner = k
		}
	}
	if inner != nil && (best == nil || inner.newest > best.version) {
		return inner.newestEntry()
	}
	return best
}

// newestEntry returns the entry whose version is n.newest.
func (n *node[V]) newestEntry() *entry[V] {
	for !n.leaf() {
		i := 0
		for n.children[i].newest != n.newest {
			i++
		}
		n = n.children[i]
	}
	for i := range n.entries {
		if n.entries[i].version == n.newest {
			return &n.entries[i]
		}
	}
	return nil
}

// prefixEnd returns the smallest key that is greater than all keys that start with prefix. It returns false if no
// key is greater.
func prefixEnd(prefix string) (end string, bounded bool) {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			return prefix[:i] + string([]byte{prefix[i] + 1}), true
		}
	}
	return "", false
}
