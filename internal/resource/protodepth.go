package resource

import "errors"

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
		next, size, ok := nextField(b[:end], i)
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

// nextField reads the field at i as the generated decoders read it. next is where
// its content starts, if it has a size, or where the next field does.
func nextField(b []byte, i int) (next, size int, ok bool) {
	tag, i, ok := varint(b, i)
	if !ok {
		return 0, 0, false
	}
	switch tag & 7 {
	case 0:
		_, i, ok = varint(b, i)
	case 1:
		i += 8
	case 2:
		var n uint64
		n, i, ok = varint(b, i)
		if !ok || n > uint64(len(b)-i) {
			return 0, 0, false
		}
		size = int(n)
	case 3, 4: // the ends of a group, whose fields count as this message's
	case 5:
		i += 4
	default:
		return 0, 0, false
	}
	return i, size, ok && i <= len(b)
}

// varint reads a number of at most ten bytes; bits beyond 64 are lost, as they
// are to the generated decoders.
func varint(b []byte, i int) (n uint64, next int, ok bool) {
	for shift := 0; shift < 64 && i < len(b); shift += 7 {
		n |= uint64(b[i]&0x7f) << shift
		if i++; b[i-1] < 0x80 {
			return n, i, true
		}
	}
	return 0, 0, false
}
