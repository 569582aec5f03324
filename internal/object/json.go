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

// maxDepth is how deep objects and arrays may nest, as in encoding/json.
const maxDepth = 10000

// DecodeJSON decodes one JSON object. duplicates names each repeated key by its
// path ("spec.foo", "spec.ports[0].name") in order of appearance, each path once
// and at most 100 of them; the last value wins. DuplicateError gives the text that
// clients see. A bare null gives an empty tree.
//
// The error is what sigs.k8s.io/json would say of the same input; nesting deeper
// than 10,000 is an error. Numbers are int64 where they are written as an integer
// that fits, else float64. The strings of the tree share one copy of data, which
// itself is not kept.
func DecodeJSON(data []byte) (t Tree, duplicates []string, err error) { return decodeJSON(data, false) }

// DecodeApplied decodes JSON as DecodeJSON does, and its numbers as DecodeYAML does: a whole number is an int64 however it is written
// ("2.0", "1e2", "-0.0"), if it fits.
func DecodeApplied(data []byte) (t Tree, duplicates []string, err error) {
	return decodeJSON(data, true)
}

func decodeJSON(data []byte, whole bool) (t Tree, duplicates []string, err error) {
	d := decoders.Get().(*decoder)
	defer d.release()
	d.s, d.whole = string(data), whole
	t, ok := d.document()
	if !ok {
		return refused(data)
	}
	if d.repeated {
		duplicates = findDuplicates(d.s)
	}
	return t, duplicates, nil
}

// refused asks the decoder that upstream uses what is wrong with data. It is the
// slow path of bad input, so that the words are exactly upstream's.
func refused(data []byte) (Tree, []string, error) {
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

// DuplicateError is how upstream's strict decoding words an entry of the
// duplicates that DecodeJSON and DecodeYAML return.
func DuplicateError(duplicate string) string {
	if strings.HasPrefix(duplicate, yamlPrefix) {
		return duplicate
	}
	return "duplicate field " + strconv.Quote(duplicate)
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

// decoder reads one document from front to back. Its methods report only
// success; what was wrong is found by refused.
type decoder struct {
	scanner
	depth    int
	repeated bool
	whole    bool    // whole numbers are integers however they are written
	values   []any   // finished elements of the arrays that are open
	entries  []entry // finished entries of the objects that are open
}

type entry struct {
	key   string
	value any
}

func (d *decoder) release() {
	const keep = 1 << 12
	values, entries := d.values, d.entries
	if cap(values) > keep || cap(entries) > keep {
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
			return d.gather(base), true
		default:
			return nil, false
		}
	}
}

// gather makes a map of the entries from base on. Only now their number is
// known, so that the map is made in its final size.
func (d *decoder) gather(base int) Tree {
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

// yield lets other goroutines run at every 2048th element: a large document does not keep a processor until Go preempts the decoder,
// which takes 10 to 20 ms.
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
	if d.whole && !integer {
		return Number(f), err == nil
	}
	return f, err == nil
}

// Number returns the number that DecodeJSON reads from the JSON of f: an int64 if f is a whole number that fits, else f. The JSON has the
// fewest digits that identify f, so a large number may differ from f: 1<<62 becomes 4611686018427388000, as upstream has it.
func Number(f float64) any {
	if f != math.Trunc(f) || math.Abs(f) > 1<<63 {
		return f
	}
	if i, err := strconv.ParseInt(strconv.FormatFloat(f, 'f', -1, 64), 10, 64); err == nil {
		return i
	}
	return f
}

// scanNumber returns where the number that starts at pos ends, and whether it is
// written without fraction and exponent.
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

// str reads the string whose opening quote is at pos.
func (d *decoder) str() (string, bool) {
	s, end, ok := scanString(d.s, d.pos+1)
	d.pos = end
	return s, ok
}
