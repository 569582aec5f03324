package weight

// magic precedes the envelope of a protobuf body.
const magic = "k8s\x00"

// message is a protobuf message in which the current position of the scan is.
type message struct {
	end  int
	node *node
}

// Protobuf returns the weight of a protobuf body. The result is meaningless if the decoder rejects the body. The time
// is linear in the size of the body. Fields with an unknown number or the wrong wire type add no weight, because
// decoders do not store them.
func (t *Table) Protobuf(data []byte) int64 {
	weight := int64(len(data)) * textFactor
	if len(data) < len(magic) {
		return weight
	}
	data = data[len(magic):]
	var buffer [64]message
	stack := append(buffer[:0], message{len(data), t.envelope})
	for i := 0; len(stack) > 0; {
		m := &stack[len(stack)-1]
		if i >= m.end {
			stack = stack[:len(stack)-1]
			continue
		}
		number, size, next, ok := WireField(data[:m.end], i)
		if !ok {
			i = m.end // a decoder fails here
			continue
		}
		i = next + size
		if number >= uint64(len(m.node.byNumber)) || m.node.byNumber[number] == nil {
			continue
		}
		f := m.node.byNumber[number]
		weight += itemWeight + f.memory
		switch {
		case f.packed:
			weight += int64(size) * (itemWeight + f.memory)
		case f.node != nil && size > 0:
			stack, i = append(stack, message{i, f.node}), next
		}
	}
	return weight
}

// WireField reads the protobuf field at i of b, as the generated decoders do. It returns the field's number, the size
// of its content, and the offset next of the content. For a numeric field, size is 0 and next is the offset of the
// next field. ok is false if the field is malformed.
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
	case 3, 4: // start or end of a group: the generated decoders treat its fields as fields of this message
	case 5:
		i += 4
	default:
		return 0, 0, 0, false
	}
	return tag >> 3, size, i, ok && i+size <= len(b)
}

// varint reads a varint of at most ten bytes. It drops bits beyond 64, as the generated decoders do.
func varint(b []byte, i int) (n uint64, next int, ok bool) {
	for shift := 0; shift < 64 && i < len(b); shift += 7 {
		n |= uint64(b[i]&0x7f) << shift
		if i++; b[i-1] < 0x80 {
			return n, i, true
		}
	}
	return 0, 0, false
}
