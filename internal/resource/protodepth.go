package resource

import (
	"errors"

	"github.com/trellis-k8s/trellis/internal/weight"
)

// maxDepth is the maximum nesting depth of messages in a protobuf body. sigs.k8s.io/json has the same limit.
const maxDepth = 10_000

var errTooDeep = errors.New("exceeded max depth")

// checkDepth rejects a message whose nesting could exhaust the stack of the generated decoders. That would end the
// process. Deep nesting is possible because a CRD's schema may contain itself.
//
// checkDepth does not know the types of fields, so it scans each length-delimited field as if it were a message. It
// skips the rest of such a field at the first invalid byte. A decoder never recurses deeper than this scan. The
// time is linear in len(b).
func checkDepth(b []byte) error {
	ends := []int{len(b)} // ends of the messages that contain the byte at i
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
