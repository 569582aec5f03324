// Package tree is a persistent ordered map: an immutable B+ tree from string
// keys to versioned values that knows, for any range, how many keys lie in it
// and which was changed last. It knows nothing of records, logs or disks.
//
// A Tree is a value. Reading needs no lock and never sees a change; changing one
// (Edit) copies the path from the root to the leaf and shares everything else.
package tree

// Nodes hold at most max entries and, but for the root, at least min.
const (
	maxEntries = 32
	minEntries = maxEntries / 4
)

// Tree is an immutable map. The zero value is empty.
type Tree[V any] struct{ root *node[V] }

// entry is one key of a leaf.
type entry[V any] struct {
	key     string
	version int64
	value   V
}

// node is a leaf (kids == nil) or an inner node. firsts[i] is a lower bound of
// the keys below kids[i] and greater than all keys below kids[i-1].
type node[V any] struct {
	owner   *owner
	count   int   // keys below
	newest  int64 // greatest version below
	entries []entry[V]
	firsts  []string
	kids    []*node[V]
}

func (n *node[V]) leaf() bool { return n.kids == nil }

// size is the number of slots in use.
func (n *node[V]) size() int {
	if n.leaf() {
		return len(n.entries)
	}
	return len(n.kids)
}

// find returns the index of the first entry of a leaf that is not below key.
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

// child returns the index of the kid that key belongs below.
func (n *node[V]) child(key string) int {
	lo, hi := 1, len(n.firsts)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if n.firsts[mid] <= key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// sum recomputes count and newest from what is directly below.
func (n *node[V]) sum() {
	n.count, n.newest = 0, 0
	if n.leaf() {
		n.count = len(n.entries)
		for i := range n.entries {
			n.newest = max(n.newest, n.entries[i].version)
		}
		return
	}
	for _, k := range n.kids {
		n.count += k.count
		n.newest = max(n.newest, k.newest)
	}
}

// Len is the number of keys.
func (t Tree[V]) Len() int {
	if t.root == nil {
		return 0
	}
	return t.root.count
}

// Get returns the value of key. It searches in place, without find and child: every
// read of one object comes through here.
func (t Tree[V]) Get(key string) (value V, ok bool) {
	n := t.root
	if n == nil {
		return value, false
	}
	for n.kids != nil {
		lo, hi := 1, len(n.firsts)
		for lo < hi {
			if mid := int(uint(lo+hi) >> 1); n.firsts[mid] <= key {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		n = n.kids[lo-1]
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

// Walk yields, in key order, the values of the keys that start with prefix and
// are greater than after, until yield returns false.
func (t Tree[V]) Walk(prefix, after string, yield func(V) bool) {
	if t.root != nil {
		end, bounded := endOf(prefix)
		t.root.walk(begin(prefix, after), end, bounded, yield)
	}
}

// begin is where a walk starts: at prefix, or right after after.
func begin(prefix, after string) string {
	if after != "" && after >= prefix {
		return after + "\x00"
	}
	return prefix
}

// walk yields the values of [from, to).
func (n *node[V]) walk(from, to string, bounded bool, yield func(V) bool) bool {
	if n.leaf() {
		for i := n.find(from); i < len(n.entries); i++ {
			if bounded && n.entries[i].key >= to || !yield(n.entries[i].value) {
				return false
			}
		}
		return true
	}
	lo, hi := n.child(from), len(n.kids)-1
	if bounded {
		hi = n.child(to)
	}
	for i := lo; i <= hi; i++ {
		more := false
		if i == lo || i == hi && bounded {
			more = n.kids[i].walk(from, to, bounded, yield)
		} else {
			more = n.kids[i].all(yield) // wholly inside: nothing to compare
		}
		if !more {
			return false
		}
	}
	return true
}

// all yields every value below n.
func (n *node[V]) all(yield func(V) bool) bool {
	for i := range n.entries {
		if !yield(n.entries[i].value) {
			return false
		}
	}
	for _, k := range n.kids {
		if !k.all(yield) {
			return false
		}
	}
	return true
}

// Newer yields, in key order, the values of the keys that start with prefix and whose version is
// greater than version, until yield returns false. It does not look below nodes that hold none.
func (t Tree[V]) Newer(prefix string, version int64, yield func(V) bool) {
	if t.root != nil {
		end, bounded := endOf(prefix)
		t.root.newer(prefix, end, bounded, version, yield)
	}
}

// newer yields the values of [from, to) with a greater version.
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
	hi := len(n.kids) - 1
	if bounded {
		hi = n.child(to)
	}
	for i := n.child(from); i <= hi; i++ {
		if !n.kids[i].newer(from, to, bounded, version, yield) {
			return false
		}
	}
	return true
}

// Count says how many values Walk(prefix, after) yields, in logarithmic time.
func (t Tree[V]) Count(prefix, after string) int {
	if t.root == nil {
		return 0
	}
	hi := t.root.count
	if end, bounded := endOf(prefix); bounded {
		hi = t.root.rank(end)
	}
	return max(0, hi-t.root.rank(begin(prefix, after)))
}

// rank is the number of keys below n that are less than key.
func (n *node[V]) rank(key string) int {
	r := 0
	for !n.leaf() {
		i := n.child(key)
		for _, k := range n.kids[:i] {
			r += k.count
		}
		n = n.kids[i]
	}
	return r + n.find(key)
}

// Newest returns the value with the greatest version among the keys that start
// with prefix, and that version; 0 if there are none. Logarithmic time.
func (t Tree[V]) Newest(prefix string) (value V, version int64) {
	if t.root == nil {
		return value, 0
	}
	end, bounded := endOf(prefix)
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
	lo, hi := n.child(from), len(n.kids)-1
	if bounded {
		hi = n.child(to)
	}
	var top *node[V] // newest of the kids that lie wholly inside
	for i := lo; i <= hi; i++ {
		k := n.kids[i]
		if i == lo || i == hi && bounded {
			if e := k.latest(from, to, bounded); e != nil && (best == nil || e.version > best.version) {
				best = e
			}
		} else if top == nil || k.newest > top.newest {
			top = k
		}
	}
	if top != nil && (best == nil || top.newest > best.version) {
		return top.top()
	}
	return best
}

// top returns the entry that holds n.newest.
func (n *node[V]) top() *entry[V] {
	for !n.leaf() {
		i := 0
		for n.kids[i].newest != n.newest {
			i++
		}
		n = n.kids[i]
	}
	for i := range n.entries {
		if n.entries[i].version == n.newest {
			return &n.entries[i]
		}
	}
	return nil
}

// endOf returns the smallest key greater than all that start with prefix, if
// there is one.
func endOf(prefix string) (end string, bounded bool) {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			return prefix[:i] + string([]byte{prefix[i] + 1}), true
		}
	}
	return "", false
}
