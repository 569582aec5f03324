package object

import (
	"errors"
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync"

	kjson "sigs.k8s.io/json"
)

// maxDepth is the maximum nesting depth of objects and arrays, as in encoding/json.
const maxDepth = 10000

// DecodeJSON decodes one JSON object. For a repeated key, the last value wins. duplicates contains the path of each
// repeated key, such as "spec.foo" or "spec.ports[0].name", in order of appearance. Each path appears once, and
// there are at most 100. DuplicateError returns the message for a path. A bare null gives an empty tree.
//
// The error equals that of sigs.k8s.io/json for the same input. Nesting deeper than 10,000 levels is an error. An
// integer literal that fits into 64 bits becomes an int64. Any other number becomes a float64. The strings of the
// tree share one copy of data. DecodeJSON does not retain data.
func DecodeJSON(data []byte) (t Tree, duplicates []string, err error) { return decodeJSON(data, false) }

// DecodeApplied does the same as DecodeJSON, but decodes numbers in the same way as DecodeYAML. A whole number that
// fits becomes an int64 in any notation, such as "2.0", "1e2" or "-0.0".
func DecodeApplied(data []byte) (t Tree, duplicates []string, err error) {
	return decodeJSON(data, true)
}

func decodeJSON(data []byte, wholeNumbers bool) (t Tree, duplicates []string, err error) {
	d := decoders.Get().(*decoder)
	defer d.release()
	d.s, d.wholeNumbers = string(data), wholeNumbers
	t, ok := d.document()
	if !ok {
		return decodeWithUpstream(data)
	}
	if d.repeated {
		duplicates = findDuplicates(d.s)
	}
	return t, duplicates, nil
}

// decodeWithUpstream decodes data with upstream's decoder. It is the slow path for rejected input, so that errors
// equal upstream's.
func decodeWithUpstream(data []byte) (Tree, []string, error) {
	t := Tree{}
	strict, err := kjson.UnmarshalStrict(data, &t)
	if err != nil {
		return nil, nil, err
	}
	if t == nil {
		t = Tree{}
	}
	var duplicates []string
	for _, s := range strict {
		var field kjson.FieldError
		if errors.As(s, &field) {
			duplicates = append(duplicates, field.FieldPath())
		}
	}
	return t, duplicates, nil
}

// DuplicateError returns the message of upstream's strict decoding for an entry of duplicates as returned by
// DecodeJSON or DecodeYAML.
func DuplicateError(duplicate string) string {
	if strings.HasPrefix(duplicate, yamlPrefix) {
		return duplicate
	}
	return "duplicate field " + strconv.Quote(duplicate)
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

// decoder decodes one document from start to end. Its methods report only success. decodeWithUpstream finds the
// cause of a failure.
type decoder struct {
	scanner
	depth        int
	repeated     bool
	wholeNumbers bool    // a whole number is an int64 in any notation
	values       []any   // decoded elements of the arrays that are still open
	entries      []entry // decoded entries of the objects that are still open
}

type entry struct {
	key   string
	value any
}

func (d *decoder) release() {
	const maxRetained = 1 << 12
	values, entries := d.values, d.entries
	if cap(values) > maxRetained || cap(entries) > maxRetained {
		values, entries = nil, nil
	}
	clear(values)
	clear(entries)
	*d = decoder{values: values[:0], entries: entries[:0]}
	decoders.Put(d)
}

func (d *decoder) document() (Tree, bool) {
	if d.peek() != '{' {
		return nil, false
	}
	t, ok := d.object()
	return t, ok && d.peek() == 0 && d.pos == len(d.s)
}

func (d *decoder) value() (any, bool) {
	switch d.peek() {
	case '{':
		return d.object()
	case '[':
		return d.array()
	case '"':
		return d.str()
	case 't':
		return true, d.literal("true")
	case 'f':
		return false, d.literal("false")
	case 'n':
		return nil, d.literal("null")
	default:
		return d.number()
	}
}

func (d *decoder) literal(word string) bool {
	if !strings.HasPrefix(d.s[d.pos:], word) {
		return false
	}
	d.pos += len(word)
	return true
}

func (d *decoder) object() (Tree, bool) {
	if d.depth++; d.depth > maxDepth {
		return nil, false
	}
	d.pos++
	base := len(d.entries)
	if d.peek() == '}' {
		d.pos++
		d.depth--
		return Tree{}, true
	}
	for {
		if d.peek() != '"' {
			return nil, false
		}
		key, ok := d.str()
		if !ok || d.peek() != ':' {
			return nil, false
		}
		d.pos++
		v, ok := d.value()
		if !ok {
			return nil, false
		}
		d.entries = append(d.entries, entry{key, v})
		yield(len(d.entries))
		switch d.peek() {
		case ',':
			d.pos++
		case '}':
			d.pos++
			d.depth--
			return d.popObject(base), true
		default:
			return nil, false
		}
	}
}

// popObject returns a map of the entries from base on and removes them. The number of entries is known at this
// point, so the map gets its final size.
func (d *decoder) popObject(base int) Tree {
	found := d.entries[base:]
	t := make(Tree, len(found))
	for i := range found {
		t[found[i].key] = found[i].value
		yield(i)
	}
	if len(t) != len(found) {
		d.repeated = true
	}
	clear(found)
	d.entries = d.entries[:base]
	return t
}

func (d *decoder) array() ([]any, bool) {
	if d.depth++; d.depth > maxDepth {
		return nil, false
	}
	d.pos++
	base := len(d.values)
	if d.peek() == ']' {
		d.pos++
		d.depth--
		return []any{}, true
	}
	for {
		v, ok := d.value()
		if !ok {
			return nil, false
		}
		d.values = append(d.values, v)
		yield(len(d.values))
		switch d.peek() {
		case ',':
			d.pos++
		case ']':
			d.pos++
			d.depth--
			out := make([]any, len(d.values)-base)
			copy(out, d.values[base:])
			clear(d.values[base:])
			d.values = d.values[:base]
			return out, true
		default:
			return nil, false
		}
	}
}

// yield lets other goroutines run at every 2048th element. Otherwise, a large document would occupy a processor
// until Go preempts the decoder after 10 to 20 ms.
func yield(n int) {
	if n%2048 == 2047 {
		runtime.Gosched()
	}
}

func (d *decoder) number() (any, bool) {
	end, integer, ok := scanNumber(d.s, d.pos)
	if !ok {
		return nil, false
	}
	text := d.s[d.pos:end]
	d.pos = end
	if integer {
		if i, err := strconv.ParseInt(text, 10, 64); err == nil {
			return i, true
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	if d.wholeNumbers && !integer {
		return Number(f), err == nil
	}
	return f, err == nil
}

// Number returns the number that DecodeJSON reads from the JSON of f: an int64 if f is a whole number that fits,
// otherwise f. The JSON has the fewest digits that identify f, so a large number may differ from f. For example,
// 1<<62 becomes 4611686018427388000, as in upstream.
func Number(f float64) any {
	if f != math.Trunc(f) || math.Abs(f) > 1<<63 {
		return f
	}
	if i, err := strconv.ParseInt(strconv.FormatFloat(f, 'f', -1, 64), 10, 64); err == nil {
		return i
	}
	return f
}

// scanNumber returns the end of the number that starts at pos. integer reports whether the number has no fraction
// and no exponent.
func scanNumber(s string, pos int) (end int, integer, ok bool) {
	i := pos
	if i < len(s) && s[i] == '-' {
		i++
	}
	first := i
	i = scanDigits(s, i)
	if i == first || s[first] == '0' && i > first+1 {
		return i, false, false
	}
	integer = true
	if i < len(s) && s[i] == '.' {
		integer = false
		start := i + 1
		if i = scanDigits(s, start); i == start {
			return i, false, false
		}
	}
	if i < len(s) && s[i]|0x20 == 'e' {
		integer = false
		if i++; i < len(s) && (s[i] == '+' || s[i] == '-') {
			i++
		}
		start := i
		if i = scanDigits(s, start); i == start {
			return i, false, false
		}
	}
	return i, integer, true
}

func scanDigits(s string, i int) int {
	for i < len(s) && s[i]-'0' <= 9 {
		i++
	}
	return i
}

// str decodes the string whose opening quote is at pos.
func (d *decoder) str() (string, bool) {
	s, end, ok := scanString(d.s, d.pos+1)
	d.pos = end
	return s, ok
}
