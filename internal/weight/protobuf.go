package weight

// magic precedes the envelope of a protobuf body.
const magic = "k8s\x00"

// message is one that the scan is within.
type message struct {
	end int
	of  *node
}

// Protobuf is the weight of a body in protobuf. What a decoder refuses may weigh anything up to there. The time is linear in the
// size of the body. Fields of an unknown number or of another type than their own weigh nothing, as decoders keep nothing of them.
func (t *Table) Protobuf(data []byte) int64 {
	weight := int64(len(data)) * textFactor
	if len(data) < len(magic) {
		return weight
	}
	data = data[len(magic):]
	var room [64]message
	stack := append(room[:0], message{len(data), t.envelope})
	for i := 0; len(stack) > 0; {
		m := &stack[len(stack)-1]
		if i >= m.end {
			stack = stack[:len(stack)-1]
			continue
		}
		number, size, next, ok := WireField(data[:m.end], i)
		if !ok {
			i = m.end // a decoder gives up here
			continue
		}
		i = next + size
		if number >= uint64(len(m.of.byNumber)) || m.of.byNumber[number] == nil {
			continue
		}
		f := m.of.byNumber[number]
		weight += itemWeight + f.each
		switch {
		case f.packed:
			weight += int64(size) * (itemWeight + f.each)
		case f.of != nil && size > 0:
			stack, i = append(stack, message{i, f.of}), next
		}
	}
	return weight
}

// WireField reads the field at i as the generated decoders read it: its number, and the size of its content from next on, which is 0
// for a number.
func WireField(b []byte, i int) (number uint64, size, next int, ok bool) {
	tag, i, ok := varint(b, i)
	if !ok {
		return 0, 0, 0, false
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
			return 0, 0, 0, false
		}
		size = int(n)
	case 3, 4: // the ends of a group, whose fields count as this message's
	case 5:
		i += 4
	default:
		return 0, 0, 0, false
	}
	return tag >> 3, size, i, ok && i+size <= len(b)
}

// varint reads a number of at most ten bytes; bits beyond 64 are lost, as they are to the generated decoders.
func varint(b []byte, i int) (n uint64, next int, ok bool) {
	for shift := 0; shift < 64 && i < len(b); shift += 7 {
		n |= uint64(b[i]&0x7f) << shift
		if i++; b[i-1] < 0x80 {
			return n, i, true
		}
	}
	return 0, 0, false
}
