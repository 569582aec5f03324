package object

import (
	"errors"
	"strings"
	"unsafe"
)

var errScan = errors.New("malformed JSON")

// maxFields is how many paths one scan looks for.
const maxFields = 64

// Field returns the raw JSON of the value at a path of field names, without a
// copy. It trusts js to be valid JSON without repeated keys, as DecodeJSON accepts
// and AppendJSON writes it; of anything else it may make nothing, but it never panics.
func Field(js []byte, path ...string) (raw []byte, ok bool) {
	var out [1][]byte
	paths := [1][]string{path}
	fieldsOf(js, paths[:], out[:])
	return out[0], out[0] != nil
}

// Fields is Field for several paths in one scan: out[i] becomes the value at
// paths[i], or nil. The path of one may be the beginning of another's.
func Fields(js []byte, paths [][]string, out [][]byte) {
	for len(paths) > maxFields {
		fieldsOf(js, paths[:maxFields], out[:maxFields])
		paths, out = paths[maxFields:], out[maxFields:]
	}
	fieldsOf(js, paths, out)
}

func fieldsOf(js []byte, paths [][]string, out [][]byte) {
	s := fieldScan{scanner: scanner{s: alias(js)}, js: js, paths: paths, out: out}
	var want uint64
	for i := range paths {
		out[i] = nil
		want |= 1 << i
		if len(paths[i]) == 0 {
			out[i] = js
			want &^= 1 << i
		}
	}
	s.left = want
	if s.peek() == '{' {
		s.object(want, 0)
	}
}

// alias views b as a string; it must not change while the string is in use.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

type fieldScan struct {
	scanner
	js    []byte
	paths [][]string
	out   [][]byte
	left  uint64 // paths not found yet
}

// object looks in the object at pos for the paths in want, whose first level
// names lead here. It returns false where the scan is to stop.
func (s *fieldScan) object(want uint64, level int) bool {
	s.pos++
	for {
		key, ok := s.member()
		if !ok {
			return s.left != 0 && !s.bad
		}
		deeper := s.match(want, level, key)
		start := s.pos
		if deeper != 0 && s.pos < len(s.s) && s.s[s.pos] == '{' {
			if !s.object(deeper, level+1) {
				return false
			}
		} else if !s.skip() {
			return false
		}
		if !s.take(want, level, key, start) {
			return false
		}
		if s.peek() == ',' {
			s.pos++
		}
	}
}

// match returns the paths that go on below key.
func (s *fieldScan) match(want uint64, level int, key string) (deeper uint64) {
	for i := range s.paths {
		if want&(1<<i) != 0 && len(s.paths[i]) > level+1 && s.paths[i][level] == key {
			deeper |= 1 << i
		}
	}
	return deeper
}

// take records the value from start to pos for the paths that end at key.
func (s *fieldScan) take(want uint64, level int, key string, start int) bool {
	for i := range s.paths {
		if want&(1<<i) != 0 && len(s.paths[i]) == level+1 && s.paths[i][level] == key {
			s.out[i] = s.js[start:s.pos:s.pos]
			s.left &^= 1 << i
		}
	}
	return s.left != 0
}

// scanner steps over JSON without decoding it.
type scanner struct {
	s   string
	pos int
	bad bool
}

// peek skips white space and returns the byte that follows, 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.s) {
		switch c := s.s[s.pos]; c {
		case ' ', '\n', '\t', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// member reads the next key of an object and stops at its value; false behind
// the closing brace or where there is no key.
func (s *scanner) member() (key string, ok bool) {
	switch s.peek() {
	case '}':
		s.pos++
		return "", false
	case '"':
		key, s.pos, ok = scanString(s.s, s.pos+1)
	}
	if !ok || s.peek() != ':' {
		s.bad = true
		return "", false
	}
	s.pos++
	s.bad = s.peek() == 0
	return key, !s.bad
}

// skip steps over the value at pos.
func (s *scanner) skip() bool {
	depth := 0
	for s.pos < len(s.s) {
		switch s.s[s.pos] {
		case '"':
			if !s.skipString() {
				return false
			}
		case '{', '[':
			depth++
			s.pos++
		case '}', ']':
			depth--
			s.pos++
		case ' ', '\n', '\t', '\r', ',', ':':
			s.pos++
		default:
			s.skipWord()
		}
		if depth <= 0 {
			return depth == 0
		}
	}
	return false
}

// skipString steps over the string whose quote is at pos.
func (s *scanner) skipString() bool {
	for i := s.pos + 1; ; {
		n := strings.IndexByte(s.s[i:], '"')
		if n < 0 {
			s.pos = len(s.s)
			return false
		}
		i += n
		back := i
		for s.s[back-1] == '\\' {
			back--
		}
		i++
		if (i-1-back)%2 == 0 {
			s.pos = i
			return true
		}
	}
}

// skipWord steps over a number or literal.
func (s *scanner) skipWord() {
	for s.pos++; s.pos < len(s.s); s.pos++ {
		switch s.s[s.pos] {
		case ',', '}', ']', ' ', '\n', '\t', '\r', ':', '"', '{', '[':
			return
		}
	}
}
