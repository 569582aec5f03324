package object

import (
	"errors"
	"strings"
	"unsafe"
)

var errScan = errors.New("malformed JSON")

// maxFields is the maximum number of paths in one scan.
const maxFields = 64

// Field returns the raw JSON of the value at a path of field names. The result is not a copy. Field expects valid
// JSON without repeated keys, which DecodeJSON accepts and AppendJSON writes. For any other input it may find
// nothing, but it never panics.
func Field(js []byte, path ...string) (raw []byte, ok bool) {
	var out [1][]byte
	paths := [1][]string{path}
	scanFields(js, paths[:], out[:])
	return out[0], out[0] != nil
}

// Fields finds the values at several paths in one scan. It sets out[i] to the value at paths[i], or to nil. One
// path may be a prefix of another.
func Fields(js []byte, paths [][]string, out [][]byte) {
	for len(paths) > maxFields {
		scanFields(js, paths[:maxFields], out[:maxFields])
		paths, out = paths[maxFields:], out[maxFields:]
	}
	scanFields(js, paths, out)
}

func scanFields(js []byte, paths [][]string, out [][]byte) {
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
	s.missing = want
	if s.peek() == '{' {
		s.object(want, 0)
	}
}

// alias returns b as a string without copying. b must not change while the string is in use.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

type fieldScan struct {
	scanner
	js      []byte
	paths   [][]string
	out     [][]byte
	missing uint64 // bit set of the paths not found yet
}

// object searches the object at pos for the paths in the set want. The parameter level is the number of names that
// lead to this object in each of the paths. object returns false if the scan must stop.
func (s *fieldScan) object(want uint64, level int) bool {
	s.pos++
	for {
		key, ok := s.member()
		if !ok {
			return s.missing != 0 && !s.bad
		}
		deeper := s.matchDeeper(want, level, key)
		start := s.pos
		if deeper != 0 && s.pos < len(s.s) && s.s[s.pos] == '{' {
			if !s.object(deeper, level+1) {
				return false
			}
		} else if !s.skip() {
			return false
		}
		if !s.record(want, level, key, start) {
			return false
		}
		if s.peek() == ',' {
			s.pos++
		}
	}
}

// matchDeeper returns the paths that continue below key.
func (s *fieldScan) matchDeeper(want uint64, level int, key string) (deeper uint64) {
	for i := range s.paths {
		if want&(1<<i) != 0 && len(s.paths[i]) > level+1 && s.paths[i][level] == key {
			deeper |= 1 << i
		}
	}
	return deeper
}

// record stores the value from start to pos for the paths that end at key. It returns false if all paths have been
// found.
func (s *fieldScan) record(want uint64, level int, key string, start int) bool {
	for i := range s.paths {
		if want&(1<<i) != 0 && len(s.paths[i]) == level+1 && s.paths[i][level] == key {
			s.out[i] = s.js[start:s.pos:s.pos]
			s.missing &^= 1 << i
		}
	}
	return s.missing != 0
}

// scanner scans JSON without decoding it.
type scanner struct {
	s   string
	pos int
	bad bool // the JSON is malformed
}

// peek skips white space and returns the next byte, or 0 at the end.
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

// member reads the next key of an object and stops at its value. It returns false after the closing brace, or if no
// key follows.
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

// skip moves past the value at pos.
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

// skipString moves past the string whose opening quote is at pos.
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

// skipWord moves past a number or literal.
func (s *scanner) skipWord() {
	for s.pos++; s.pos < len(s.s); s.pos++ {
		switch s.s[s.pos] {
		case ',', '}', ']', ' ', '\n', '\t', '\r', ':', '"', '{', '[':
			return
		}
	}
}
