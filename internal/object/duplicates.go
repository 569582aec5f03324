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
	path  []step
	found []string
	seen  map[string]bool
	bytes int
}

// step is one part of a path: a key or an index.
type step struct {
	key     string
	index   int
	isIndex bool
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
	keys := map[string]int{}
	for f.d.pos++; f.d.peek() != '}' && !f.full(); {
		key, _ := f.d.str()
		if keys[key]++; keys[key] == 2 {
			f.report(key)
		}
		f.d.peek()
		f.d.pos++
		f.path = append(f.path, step{key: key})
		f.value()
		f.path = f.path[:len(f.path)-1]
		if f.d.peek() == ',' {
			f.d.pos++
			f.d.peek()
		}
	}
	f.d.pos++
}

func (f *duplicateFinder) array() {
	f.d.pos++
	for i := 0; f.d.peek() != ']' && !f.full(); i++ {
		f.path = append(f.path, step{index: i, isIndex: true})
		f.value()
		f.path = f.path[:len(f.path)-1]
		if f.d.peek() == ',' {
			f.d.pos++
		}
	}
	f.d.pos++
}

func (f *duplicateFinder) report(key string) {
	var p []byte
	for i, s := range append(f.path, step{key: key}) {
		if s.isIndex {
			p = append(p, '[')
			p = strconv.AppendInt(p, int64(s.index), 10)
			p = append(p, ']')
			continue
		}
		if i > 0 {
			p = append(p, '.')
		}
		p = append(p, s.key...)
	}
	f.bytes += len(p)
	if path := string(p); !f.seen[path] {
		f.seen[path] = true
		f.found = append(f.found, path)
	}
}
