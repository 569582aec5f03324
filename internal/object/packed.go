package object

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
)

// Packed is an object as it lies in storage: a header and the canonical JSON of
// the object without metadata.resourceVersion. The header says where the
// resourceVersion is spliced in and under which fingerprint the object was
// written. A Packed is never modified.
//
// The header is, little endian:
//
//	0  format, 1
//	1  how resourceVersion is spliced in: 0 not at all, 1 alone in an empty
//	   metadata, 2 before another key, 3 after the last key
//	2  uint16 length of the apiVersion's value, quotes included; 0 if it has none
//	4  uint32 offset of that value in the JSON
//	8  uint32 offset of the splice in the JSON
//	12 uint32 length of the JSON
//	16 uint64 fingerprint
type Packed []byte

const (
	packedFormat = 1
	headerSize   = 24
)

const (
	spliceNone byte = iota
	spliceAlone
	spliceBefore
	spliceAfter
)

const (
	keyAPIVersion      = "apiVersion"
	keyKind            = "kind"
	keyMetadata        = "metadata"
	keyResourceVersion = "resourceVersion"
)

var packBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 8<<10); return &b }}

// Pack encodes t, leaving out metadata.resourceVersion. It does not modify or
// keep t. The result has no spare capacity.
func Pack(t Tree, fingerprint uint64) Packed {
	buf := packBuffers.Get().(*[]byte)
	e := encoders.Get().(*encoder)
	p := packer{encoder: e, dst: append((*buf)[:0], make([]byte, headerSize)...)}
	p.root(t)
	e.release()
	binary.LittleEndian.PutUint32(p.dst[12:], uint32(len(p.dst)-headerSize))
	binary.LittleEndian.PutUint64(p.dst[16:], fingerprint)
	p.dst[0] = packedFormat
	out := make(Packed, len(p.dst))
	copy(out, p.dst)
	if cap(p.dst) <= 1<<20 {
		*buf = p.dst
		packBuffers.Put(buf)
	}
	return out
}

type packer struct {
	*encoder
	dst []byte
}

func (p *packer) root(t Tree) {
	base := p.sorted(t)
	p.dst = append(p.dst, '{')
	for i := base; i < base+len(t); i++ {
		key, v := p.entries[i].key, p.entries[i].value
		p.key(i > base, key)
		start := len(p.dst)
		if m, ok := v.(Tree); ok && m != nil && key == keyMetadata {
			p.metadata(m)
			continue
		}
		p.dst = p.value(p.dst, v)
		if n := len(p.dst) - start; key == keyAPIVersion && p.dst[start] == '"' && n < 1<<16 {
			binary.LittleEndian.PutUint16(p.dst[2:], uint16(n))
			binary.LittleEndian.PutUint32(p.dst[4:], uint32(start-headerSize))
		}
	}
	p.drop(base)
	p.dst = append(p.dst, '}')
}

func (p *packer) key(comma bool, key string) {
	if comma {
		p.dst = append(p.dst, ',')
	}
	p.dst = AppendString(p.dst, key)
	p.dst = append(p.dst, ':')
}

func (p *packer) metadata(m Tree) {
	base := p.sorted(m)
	p.dst = append(p.dst, '{')
	splice, first := spliceAlone, len(p.dst)
	at := first
	for i := base; i < base+len(m); i++ {
		key := p.entries[i].key
		if key == keyResourceVersion {
			continue
		}
		if len(p.dst) > first {
			p.dst = append(p.dst, ',')
		}
		if key > keyResourceVersion && splice != spliceBefore {
			splice, at = spliceBefore, len(p.dst)
		}
		p.key(false, key)
		p.dst = p.value(p.dst, p.entries[i].value)
		if splice != spliceBefore {
			splice, at = spliceAfter, len(p.dst)
		}
	}
	p.drop(base)
	p.dst = append(p.dst, '}')
	p.dst[1] = splice
	binary.LittleEndian.PutUint32(p.dst[8:], uint32(at-headerSize))
}

// JSON returns the object's JSON without resourceVersion, without a copy.
func (p Packed) JSON() []byte { return p[headerSize:] }

// Fingerprint returns what Pack was given.
func (p Packed) Fingerprint() uint64 { return binary.LittleEndian.Uint64(p[16:]) }

func (p Packed) splice() int { return int(binary.LittleEndian.Uint32(p[8:])) }

// apiVersion returns where in the JSON the value of apiVersion lies.
func (p Packed) apiVersion() (start, end int) {
	start = int(binary.LittleEndian.Uint32(p[4:]))
	return start, start + int(binary.LittleEndian.Uint16(p[2:]))
}

// HasAPIVersion reports whether the object's apiVersion is v, of plain letters.
func (p Packed) HasAPIVersion(v string) bool {
	start, end := p.apiVersion()
	return end-start == len(v)+2 && string(p.JSON()[start+1:end-1]) == v
}

// AppendJSON appends the object's JSON with resourceVersion set to revision
// (left out if 0, or if the object has no metadata).
func (p Packed) AppendJSON(dst []byte, revision int64) []byte {
	return p.appendRange(dst, 0, len(p)-headerSize, revision)
}

// AppendJSONAs is AppendJSON with another apiVersion in its place (strategy None).
func (p Packed) AppendJSONAs(dst []byte, apiVersion string, revision int64) []byte {
	js := p[headerSize:]
	start, end := p.apiVersion()
	if start == end || string(js[start+1:end-1]) == apiVersion {
		return p.appendRange(dst, 0, len(js), revision)
	}
	dst = append(dst, js[:start]...)
	dst = AppendString(dst, apiVersion)
	return p.appendRange(dst, end, len(js), revision)
}

// AppendUntyped is AppendJSON without apiVersion and kind. It steps over what comes before kind, and copies the rest.
func (p Packed) AppendUntyped(dst []byte, revision int64) []byte {
	js, start := p.JSON(), len(dst)
	dst = append(dst, '{')
	comma := func() {
		if len(dst) > start+1 {
			dst = append(dst, ',')
		}
	}
	s := scanner{s: alias(js), pos: 1}
	for {
		from := s.pos
		key, ok := s.member()
		if !ok || key > keyKind {
			s.pos = from
			break
		}
		s.skip()
		if key != keyAPIVersion && key != keyKind {
			comma()
			dst = append(dst, js[from:s.pos]...)
		}
		if s.peek() == ',' {
			s.pos++
		}
	}
	if s.bad || s.pos >= len(js) || p[1] != spliceNone && s.pos > p.splice() {
		return p.AppendJSON(dst[:start], revision) // damaged
	}
	if js[s.pos] == '"' {
		comma()
	}
	return p.appendRange(dst, s.pos, len(js), revision)
}

// AppendMetadata appends the JSON of the object's metadata alone, with resourceVersion as
// in AppendJSON; an empty object if it has none.
func (p Packed) AppendMetadata(dst []byte, revision int64) []byte {
	s := scanner{s: alias(p.JSON()), pos: 1}
	for {
		key, ok := s.member()
		if !ok {
			return append(dst, "{}"...)
		}
		start := s.pos
		if !s.next() {
			return append(dst, "{}"...)
		}
		if key != keyMetadata {
			continue
		}
		s.pos = start
		s.skip()
		return p.appendRange(dst, start, s.pos, revision)
	}
}

// opens and closes are what stands around the digits of resourceVersion, by how it is spliced in.
var (
	opens  = [...]string{spliceAlone: `"resourceVersion":"`, spliceBefore: `"resourceVersion":"`, spliceAfter: `,"resourceVersion":"`}
	closes = [...]string{spliceAlone: `"`, spliceBefore: `",`, spliceAfter: `"`}
)

// appendRange appends the JSON between two offsets, with resourceVersion set to revision if its place lies between them.
func (p Packed) appendRange(dst []byte, from, to int, revision int64) []byte {
	js, kind, at := p[headerSize:], p[1], int(binary.LittleEndian.Uint32(p[8:]))
	if kind == spliceNone || revision == 0 || at < from || at > to {
		return append(dst, js[from:to]...)
	}
	dst = append(append(dst, js[from:at]...), opens[kind]...)
	dst = strconv.AppendInt(dst, revision, 10)
	return append(append(dst, closes[kind]...), js[at:to]...)
}

// Tree decodes the object into a fresh tree with resourceVersion set to revision
// (left out if 0).
func (p Packed) Tree(revision int64) (Tree, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	t, _, err := DecodeJSON(p.JSON())
	if err != nil {
		return nil, fmt.Errorf("stored object: %w", err)
	}
	if m := Metadata(t); m != nil && revision != 0 {
		m[keyResourceVersion] = strconv.FormatInt(revision, 10)
	}
	return t, nil
}

var (
	errPackedFormat = errors.New("stored object: unknown format")
	errPackedLength = errors.New("stored object: truncated or overlong")
	errPackedHeader = errors.New("stored object: header does not fit its JSON")
)

// Check reports damage that can be seen without knowing the kind: it verifies in
// constant time that the header fits the JSON. No other method panics on, or reads
// outside of, what passes.
func (p Packed) Check() error {
	if len(p) < headerSize || p[0] != packedFormat {
		return errPackedFormat
	}
	js := p.JSON()
	if len(js) < 2 || uint64(len(js)) != uint64(binary.LittleEndian.Uint32(p[12:])) {
		return errPackedLength
	}
	start, end := p.apiVersion()
	if js[0] != '{' || js[len(js)-1] != '}' || end > len(js) || !p.spliceFits(js, end) {
		return errPackedHeader
	}
	if start < end && (end-start < 2 || start == 0 || js[start-1] != ':' || js[start] != '"' || js[end-1] != '"') {
		return errPackedHeader
	}
	return nil
}

func (p Packed) spliceFits(js []byte, apiVersionEnd int) bool {
	at := p.splice()
	if p[1] == spliceNone {
		return true
	}
	if at < 1 || at >= len(js)-1 || at < apiVersionEnd {
		return false
	}
	before, after := js[at-1], js[at]
	switch p[1] {
	case spliceAlone:
		return before == '{' && after == '}'
	case spliceBefore:
		return (before == '{' || before == ',') && after == '"'
	case spliceAfter:
		return before != '{' && before != ',' && after == '}'
	}
	return false
}
