package weight

import (
	"bytes"
	"encoding/binary"
)

// yamlNode is what the parser of YAML takes for a node, besides the value that it becomes.
const yamlNode = 600

// YAML bounds the weight of a body in YAML: parse is what the parser takes, weight what the body takes in all. Each node has an
// indicator of its own. Those that an alias repeats have none: with aliases there is no bound but the parser's own.
func (t *Table) YAML(data []byte) (parse, weight int64, aliases bool) {
	nodes := int64(1)
	for _, indicator := range [...]string{"-", ":", ",", "[", "{", "?"} {
		nodes += int64(bytes.Count(data, []byte(indicator)))
	}
	text := int64(len(data)) * textFactor
	return text + nodes*yamlNode, text + nodes*(yamlNode+mapWeight+itemWeight+keyWeight+t.most), anchored(data)
}

// anchored reports whether an anchor and an alias may be in data.
func anchored(data []byte) bool { return indicates(data, '&') && indicates(data, '*') }

// indicates reports whether c begins a word in data.
func indicates(data []byte, c byte) bool {
	for i := 0; ; i++ {
		n := bytes.IndexByte(data[i:], c)
		if n < 0 {
			return false
		}
		i += n
		begins := i == 0 || bytes.IndexByte([]byte(" \t\r\n[]{},:-?\"'"), data[i-1]) >= 0
		if begins && i+1 < len(data) && (data[i+1] == '_' || data[i+1] == '-' || alphanumeric(data[i+1])) {
			return true
		}
	}
}

func alphanumeric(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' }

// CBOR bounds the weight of a body in CBOR, as YAML does.
func (t *Table) CBOR(data []byte) (parse, weight int64) {
	items := int64(1)
	for i := 0; i < len(data); items++ {
		kind, low := data[i]>>5, data[i]&31
		size := uint64(low)
		i++
		if low >= 24 && low <= 27 {
			width := 1 << (low - 24)
			if width > len(data)-i {
				break
			}
			var number [8]byte
			copy(number[8-width:], data[i:i+width])
			size = binary.BigEndian.Uint64(number[:])
			i += width
		}
		if (kind == 2 || kind == 3) && low != 31 { // the bytes of a string
			i += int(min(size, uint64(len(data)-i)))
		}
	}
	text := int64(len(data)) * textFactor
	return text + items*itemWeight, text + items*(mapWeight+itemWeight+keyWeight+t.most)
}

// Opaque bounds the weight of values in JSON of which nobody knows the type, such as those of a JSON patch.
func (t *Table) Opaque(data []byte) (parse, weight int64) {
	values := int64(1 + bytes.Count(data, []byte("{")) + bytes.Count(data, []byte("[")) + bytes.Count(data, []byte(",")))
	text := int64(len(data)) * textFactor
	return text + values*itemWeight + mapWeight*int64(bytes.Count(data, []byte("{"))), text + values*(mapWeight+itemWeight+keyWeight+t.most)
}
