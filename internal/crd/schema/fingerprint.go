package schema

import (
	"encoding/binary"
	"hash"
	"hash/fnv"
	"maps"
	"slices"
)

// fingerprint adds the keywords that affect pruning and defaulting to a hash, in a fixed order.
func (n *Node) fingerprint(preserveUnknownFields bool) uint64 {
	p := printer{fnv.New64a()}
	p.flags(preserveUnknownFields)
	p.node(n)
	return p.Sum64()
}

type printer struct{ hash.Hash64 }

func (p printer) flags(flags ...bool) {
	b := byte(0x80)
	for i, set := range flags {
		if set {
			b |= 1 << i
		}
	}
	_, _ = p.Write([]byte{b})
}

func (p printer) text(s string) {
	var length [4]byte
	binary.LittleEndian.PutUint32(length[:], uint32(len(s)))
	_, _ = p.Write(length[:])
	_, _ = p.Write([]byte(s))
}

func (p printer) node(n *Node) {
	p.flags(n != nil)
	if n == nil {
		return
	}
	p.flags(n.Preserve, n.Embedded, n.Nullable, n.Additional != nil)
	p.text(string(n.Default))
	p.node(n.Items)
	if n.Additional != nil {
		p.node(n.Additional.Schema)
	}
	for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
		p.text(name)
		p.node(n.Properties[name])
	}
	p.flags()
}
