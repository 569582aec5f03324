package weight

import (
	"bytes"
	"encoding/binary"
)

// yamlNodeWeight is the memory that the YAML parser uses for a node, in addition to the decoded value.
const yamlNodeWeight = 600

// YAML returns upper bounds on the memory for a YAML body. parse is the memory of the parser, and weight is the memory
// of the whole write. Each node has its own YAML indicator, so YAML counts the indicators in the body. An alias
// repeats nodes without their indicators. If aliases is true, the bounds are therefore not reliable, and only the
// parser limits the size of the decoded body.
func (t *Table) YAML(data []byte) (parse, weight int64, aliases bool) {
	nodes := int64(1)
	for _, indicator := range [...]string{"-", ":", ",", "[", "{", "?"} {
		nodes += int64(bytes.Count(data, []byte(indicator)))
	}
	text := int64(len(data)) * textFactor
	perNode := yamlNodeWeight + mapWeight + itemWeight + keyWeight + t.heaviest
	return text + nodes*yamlNodeWeight, text + nodes*perNode, mayHaveAliases(data)
}

// mayHaveAliases reports whether data may contain both an anchor and an alias.
func mayHaveAliases(data []byte) bool { return hasIndicator(data, '&') && hasIndicator(data, '*') }

// hasIndicator reports whether a word in data begins with c.
func hasIndicator(data []byte, c byte) bool {
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

// CBOR returns upper bounds on the memory for a CBOR body. The results mean the same as those of YAML.
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
		if (kind == 2 || kind == 3) && low != 31 { // skip the bytes of a string
			i += int(min(size, uint64(len(data)-i)))
		}
	}
	text := int64(len(data)) * textFactor
	return text + items*itemWeight, text + items*(mapWeight+itemWeight+keyWeight+t.heaviest)
}

// Opaque returns upper bounds on the memory for JSON values of unknown type, such as those of a JSON patch. The
// results mean the same as those of YAML.
func (t *Table) Opaque(data []byte) (parse, weight int64) {
	objects := int64(bytes.Count(data, []byte("{")))
	values := 1 + objects + int64(bytes.Count(data, []byte("["))+bytes.Count(data, []byte(",")))
	text := int64(len(data)) * textFactor
	return text + values*itemWeight + mapWeight*objects, text + values*(mapWeight+itemWeight+keyWeight+t.heaviest)
}
