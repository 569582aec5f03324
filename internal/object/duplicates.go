package object

import "strconv"

const (
	maxDuplicates = 100
	// maxDuplicateBytes limits the total length of all paths. One path can be as long as the document, and a
	// document can have many duplicates.
	maxDuplicateBytes = 1 << 20
)

// findDuplicates returns the paths of repeated keys. The document must be valid JSON with at least one repeated
// key.
func findDuplicates(s string) []string {
	f := duplicateFinder{d: decoder{scanner: scanner{s: s}}, seen: map[string]bool{}}
	f.value()
	return f.found
}

type duplicateFinder struct {
	d     decoder
	path  []byte // of the current value
	below bool   // the current object is not the root
	found []string
	seen  map[string]bool
	bytes int
}

func (f *duplicateFinder) full() bool {
	return len(f.found) >= maxDuplicates || f.bytes >= maxDuplicateBytes
}

func (f *duplicateFinder) value() {
	switch f.d.peek() {
	case '{':
		f.object()
	case '[':
		f.array()
	default:
		f.d.value()
	}
}

func (f *duplicateFinder) object() {
	keys, base, below := map[string]int{}, len(f.path), f.below
	f.below = true
	for f.d.pos++; f.d.peek() != '}' && !f.full(); {
		key, _ := f.d.str()
		if below {
			f.path = append(f.path, '.')
		}
		f.path = append(f.path, key...)
		if keys[key]++; keys[key] == 2 {
			f.report()
		}
		f.d.peek()
		f.d.pos++
		f.value()
		f.path = f.path[:base]
		if f.d.peek() == ',' {
			f.d.pos++
			f.d.peek()
		}
	}
	f.d.pos++
}

func (f *duplicateFinder) array() {
	f.d.pos++
	base := len(f.path)
	for i := 0; f.d.peek() != ']' && !f.full(); i++ {
		f.path = append(strconv.AppendInt(append(f.path, '['), int64(i), 10), ']')
		f.value()
		f.path = f.path[:base]
		if f.d.peek() == ',' {
			f.d.pos++
		}
	}
	f.d.pos++
}

func (f *duplicateFinder) report() {
	f.bytes += len(f.path)
	if path := string(f.path); !f.seen[path] {
		f.seen[path] = true
		f.found = append(f.found, path)
	}
}
