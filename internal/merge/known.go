package merge

import (
	"hash/maphash"
	"strings"
	"sync/atomic"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/trellis-k8s/trellis/internal/object"
)

const (
	// knownSets is how many sets are kept, knownSize how large one may be: its keys
	// and something for each.
	knownSets, knownSize, knownKey = 512, 8 << 10, 32
	// knownBits count how often something came.
	knownBits = 3
)

// Sets remembers the field sets that were read lately: the objects of a kind are
// mostly owned alike. The zero value is ready; it may be used concurrently.
type Sets struct {
	// seen are the hashes of what came by, and in their last bits how often in a row. Only
	// what comes often is kept: those who own an object alike have the same sets, too.
	seen [knownSets]atomic.Uint64
	kept [knownSets]atomic.Pointer[knownSet]
}

// knownSet is a set and the fieldsV1 it was read from. Neither is ever modified.
type knownSet struct {
	tree      object.Tree
	set       *fieldpath.Set
	canonical bool
}

// find gives what fieldsV1 or a part of it says, nil where that is not remembered.
func (s *Sets) find(t object.Tree) *knownSet {
	if s == nil || len(t) == 0 {
		return nil
	}
	room := knownSize
	sum, ok := hashTree(t, &room)
	if !ok {
		return nil
	}
	slot := sum >> knownBits % knownSets
	if k := s.kept[slot].Load(); k != nil && object.Equal(k.tree, t) {
		return k
	}
	if !s.often(slot, sum) {
		return nil
	}
	// The strings of t lie in a whole request or object, which must not be kept with them.
	k := &knownSet{tree: cloneTree(t), set: &fieldpath.Set{}}
	r := setReader{canonical: true}
	r.fill(k.set, k.tree)
	if r.err != nil {
		return nil
	}
	k.canonical = r.canonical
	s.kept[slot].Store(k)
	return k
}

// often counts a sight of what has the hash sum.
func (s *Sets) often(slot, sum uint64) bool {
	const mask = 1<<knownBits - 1
	switch v := s.seen[slot].Load(); {
	case v&^mask != sum&^mask:
		s.seen[slot].Store(sum &^ mask)
	case v&mask == mask:
		return true
	default:
		s.seen[slot].Store(v + 1)
	}
	return false
}

var treeSeed = maphash.MakeSeed()

// hashTree hashes a tree of nothing but trees, in whatever order they come; false for any
// other, and for one that there is no room for.
func hashTree(t object.Tree, room *int) (sum uint64, ok bool) {
	for key, v := range t {
		below, ok := v.(object.Tree)
		if !ok {
			return 0, false
		}
		if *room -= len(key) + knownKey; *room < 0 {
			return 0, false
		}
		h := maphash.String(treeSeed, key)
		if len(below) > 0 {
			child, ok := hashTree(below, room)
			if !ok {
				return 0, false
			}
			h ^= child * 0x9e3779b97f4a7c15
		}
		h *= 0xff51afd7ed558ccd
		sum += h ^ h>>32
	}
	return sum, true
}

func cloneTree(t object.Tree) object.Tree {
	out := make(object.Tree, len(t))
	for key, v := range t {
		below, _ := v.(object.Tree)
		out[strings.Clone(key)] = cloneTree(below)
	}
	return out
}
