package resource

import (
	"errors"

	"github.com/trellis-k8s/trellis/internal/weight"
)

// maxDepth of nested messages in a protobuf body: what sigs.k8s.io/json allows.
const maxDepth = 10_000

var errTooDeep = errors.New("exceeded max depth")

// checkDepth refuses a message whose nesting would exhaust the stack of the
// generated decoders, which end the process then: a CRD's schema may hold itself. It knows no types,
// so each field with a length is looked into as if it were a message; one that is none is passed over
// from the first byte that does not fit. A decoder goes no deeper than this. Linear in len(b).
func checkDepth(b []byte) error {
	ends := []int{len(b)} // of the messages that i is in
	for i := 0; len(ends) > 0; {
		end := ends[len(ends)-1]
		if i >= end {
			ends = ends[:len(ends)-1]
			continue
		}
		_, size, next, ok := weight.WireField(b[:end], i)
		if !ok {
			i = end
			continue
		}
		i = next
		if size == 0 {
			continue
		}
		if ends = append(ends, i+size); len(ends) > maxDepth {
			return errTooDeep
		}
	}
	return nil
}
