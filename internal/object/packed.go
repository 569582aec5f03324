package object

import (
	"fmt"
	"strconv"
	"sync"
)

// Packed is an object in the form that is stored: its JSON without metadata.resourceVersion. A Header with the
// offsets for changing the JSON makes it quick to serve. A Packed is never modified.
type Packed struct {
	json []byte
	Header
	fingerprint uint64
}

// Header holds the offsets into an object's JSON that AppendJSON and similar methods need.
type Header struct {
	apiVersion uint32 // offset of the value of apiVersion
	splice     uint32 // offset at which resourceVersion is inserted
	size       uint16 // size of the value of apiVersion with its quotes, 0 if the object has none
	mode       byte   // how resourceVersion is inserted
}

// WithJSON returns the Packed for the JSON that h describes.
func (h Header) WithJSON(js []byte, fingerprint uint64) Packed { return Packed{js, h, fingerprint} }

const (
	spliceNone byte = iota
	spliceOnly
	spliceBefore
	spliceAfter
	spliceImpossible // nothing can be inserted, so the object must be decoded
)

const (
	keyAPIVersion      = "apiVersion"
	keyKind            = "kind"
	keyMetadata        = "metadata"
	keyResourceVersion = "resourceVersion"
)

var packBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 8<<10); return &b }}

// Pack encodes t without metadata.resourceVersion. It neither modifies nor retains t. The JSON has no spare
// capacity.
func Pack(t Tree, fingerprint uint64) Packed {
	buf := packBuffers.Get().(*[]byte)
	e := encoders.Get().(*encoder)
	p := packer{encoder: e, dst: (*buf)[:0]}
	p.root(t)
	e.release()
	out := make([]byte, len(p.dst))
	copy(out, p.dst)
	if cap(p.dst) <= 1<<20 {
		*buf = p.dst
		packBuffers.Put(buf)
	}
	return p.Header.WithJSON(out, fingerprint)
}

type packer struct {
	*encoder
	Header
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
			p.apiVersion, p.size = uint32(start), uint16(n)
		}
	}
	p.pop(base)
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
	splice, first := spliceOnly, len(p.dst)
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
	p.pop(base)
	p.dst = append(p.dst, '}')
	p.mode, p.splice = splice, uint32(at)
}

// Unpack scans JSON that Pack or another program has encoded, up to the end of its metadata. It never fails:
// MustDecode reports whether the JSON cannot be served unchanged.
func Unpack(js []byte) Packed {
	p := Packed{json: js}
	if len(js) < 2 || js[0] != '{' || js[len(js)-1] != '}' || !p.scan(&scanner{s: alias(js), pos: 1}) {
		p.Header = Header{mode: spliceImpossible}
	}
	return p
}

// scan reads the apiVersion, and finds the offset at which a resourceVersion can be inserted. It returns false if the
// apiVersion does not precede the metadata, or if the metadata already has a resourceVersion.
func (h *Header) scan(s *scanner) bool {
	located := false
	for !located || h.size == 0 {
		key, ok := s.member()
		if !ok {
			return !s.bad && s.pos == len(s.s)
		}
		start := s.pos
		if key == keyMetadata && s.s[start] == '{' && !located {
			if located = h.locateSplice(s); !located {
				return false
			}
		} else if !s.skip() {
			return false
		} else if n := s.pos - start; key == keyAPIVersion && s.s[start] == '"' && n < 1<<16 {
			if located {
				return false
			}
			h.apiVersion, h.size = uint32(start), uint16(n)
		}
		s.comma()
	}
	return true
}

// locateSplice finds the offset for resourceVersion in the metadata at the scanner's position. It chooses the same
// offset as packer.metadata.
func (h *Header) locateSplice(s *scanner) bool {
	s.pos++
	h.mode, h.splice = spliceOnly, uint32(s.pos)
	for {
		s.peek()
		start := s.pos
		key, ok := s.member()
		if !ok {
			return !s.bad
		}
		if key == keyResourceVersion || !s.skip() {
			return false
		}
		switch {
		case h.mode == spliceBefore:
		case key > keyResourceVersion:
			h.mode, h.splice = spliceBefore, uint32(start)
		default:
			h.mode, h.splice = spliceAfter, uint32(s.pos)
		}
		s.comma()
	}
}

// JSON returns the object's JSON without resourceVersion. The result is not a copy.
func (p Packed) JSON() []byte { return p.json }

// Fingerprint returns the fingerprint passed to Pack, or 0 for the result of Unpack.
func (p Packed) Fingerprint() uint64 { return p.fingerprint }

// MustDecode reports whether the object must be decoded before it can be served.
func (p Packed) MustDecode() bool { return p.mode == spliceImpossible }

// apiVersionRange returns the offsets of the value of apiVersion in the JSON.
func (p Packed) apiVersionRange() (start, end int) {
	return int(p.apiVersion), int(p.apiVersion) + int(p.size)
}

// HasAPIVersion reports whether the object's apiVersion is v. v must not contain characters that JSON escapes.
func (p Packed) HasAPIVersion(v string) bool {
	start, end := p.apiVersionRange()
	return end-start == len(v)+2 && string(p.json[start+1:end-1]) == v
}

// AppendJSON appends the object's JSON with resourceVersion set to revision. It omits resourceVersion if revision
// is 0 or the object has no metadata.
func (p Packed) AppendJSON(dst []byte, revision int64) []byte {
	return p.appendRange(dst, 0, len(p.json), revision)
}

// AppendJSONAs does the same as AppendJSON, but replaces the value of apiVersion. The conversion strategy None
// requires this.
func (p Packed) AppendJSONAs(dst []byte, apiVersion string, revision int64) []byte {
	js := p.json
	start, end := p.apiVersionRange()
	if start == end || string(js[start+1:end-1]) == apiVersion {
		return p.appendRange(dst, 0, len(js), revision)
	}
	dst = append(dst, js[:start]...)
	dst = AppendString(dst, apiVersion)
	return p.appendRange(dst, end, len(js), revision)
}

// AppendUntyped does the same as AppendJSON, but omits apiVersion and kind. It scans the members up to kind and
// copies the rest.
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
	if s.bad || s.pos >= len(js) || p.mode != spliceNone && s.pos > int(p.splice) {
		return p.AppendJSON(dst[:start], revision) // the JSON is damaged
	}
	if js[s.pos] == '"' {
		comma()
	}
	return p.appendRange(dst, s.pos, len(js), revision)
}

// AppendMetadata appends the JSON of the object's metadata, with resourceVersion as in AppendJSON. It appends {} if
// the object has no metadata.
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

// splicePrefix and spliceSuffix are the texts around the digits of resourceVersion, by Header.mode.
var (
	splicePrefix = [...]string{
		spliceOnly: `"resourceVersion":"`, spliceBefore: `"resourceVersion":"`, spliceAfter: `,"resourceVersion":"`,
	}
	spliceSuffix = [...]string{spliceOnly: `"`, spliceBefore: `",`, spliceAfter: `"`}
)

// appendRange appends the JSON between two offsets. It inserts resourceVersion with the value revision if the
// insertion offset is in that range.
func (p Packed) appendRange(dst []byte, from, to int, revision int64) []byte {
	js, kind, at := p.json, p.mode, int(p.splice)
	if kind == spliceNone || kind == spliceImpossible || revision == 0 || at < from || at > to {
		return append(dst, js[from:to]...)
	}
	dst = append(append(dst, js[from:at]...), splicePrefix[kind]...)
	dst = strconv.AppendInt(dst, revision, 10)
	return append(append(dst, spliceSuffix[kind]...), js[at:to]...)
}

// Tree decodes the object into a new tree with resourceVersion set to revision. It omits resourceVersion if
// revision is 0.
func (p Packed) Tree(revision int64) (Tree, error) {
	t, _, err := DecodeJSON(p.json)
	if err != nil {
		return nil, fmt.Errorf("decode stored object: %w", err)
	}
	switch m := Metadata(t); {
	case m == nil:
	case revision != 0:
		m[keyResourceVersion] = strconv.FormatInt(revision, 10)
	case p.mode == spliceImpossible:
		delete(m, keyResourceVersion)
	}
	return t, nil
}
