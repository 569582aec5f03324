package object

import (
	"fmt"
	"strconv"
	"sync"
)

// Packed is an object as it lies in storage, the JSON of the object without metadata.resourceVersion, and what makes it
// quick to serve. A Packed is never modified.
type Packed struct {
	json []byte
	Header
	fingerprint uint64
}

// Header is what can be known of an object's JSON once and for all.
type Header struct {
	apiVersion uint32 // where its value begins
	splice     uint32 // where resourceVersion goes
	size       uint16 // of the value of apiVersion, quotes included; 0 if it has none
	how        byte   // resourceVersion is spliced in
}

// Of returns the object of which the header is.
func (h Header) Of(js []byte, fingerprint uint64) Packed { return Packed{js, h, fingerprint} }

const (
	spliceNone byte = iota
	spliceAlone
	spliceBefore
	spliceAfter
	foreign // nothing can be spliced in
)

const (
	keyAPIVersion      = "apiVersion"
	keyKind            = "kind"
	keyMetadata        = "metadata"
	keyResourceVersion = "resourceVersion"
)

var packBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 8<<10); return &b }}

// Pack encodes t, leaving out metadata.resourceVersion. It does not modify or
// keep t. The JSON has no spare capacity.
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
	return p.Header.Of(out, fingerprint)
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
	p.how, p.splice = splice, uint32(at)
}

// Unpack looks into JSON that Pack or somebody else has encoded, up to the end of its metadata. It never fails: what cannot
// be served as it lies is Foreign.
func Unpack(js []byte) Packed {
	p := Packed{json: js}
	if len(js) < 2 || js[0] != '{' || js[len(js)-1] != '}' || !p.scan(&scanner{s: alias(js), pos: 1}) {
		p.Header = Header{how: foreign}
	}
	return p
}

// scan looks for apiVersion, which has to come first, and for the place of resourceVersion, which must not be there.
func (h *Header) scan(s *scanner) bool {
	placed := false
	for !placed || h.size == 0 {
		key, ok := s.member()
		if !ok {
			return !s.bad && s.pos == len(s.s)
		}
		start := s.pos
		if key == keyMetadata && s.s[start] == '{' && !placed {
			if placed = h.place(s); !placed {
				return false
			}
		} else if !s.skip() {
			return false
		} else if n := s.pos - start; key == keyAPIVersion && s.s[start] == '"' && n < 1<<16 {
			if placed {
				return false
			}
			h.apiVersion, h.size = uint32(start), uint16(n)
		}
		s.comma()
	}
	return true
}

// place finds where in the metadata at pos resourceVersion goes, as packer.metadata does.
func (h *Header) place(s *scanner) bool {
	s.pos++
	h.how, h.splice = spliceAlone, uint32(s.pos)
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
		case h.how == spliceBefore:
		case key > keyResourceVersion:
			h.how, h.splice = spliceBefore, uint32(start)
		default:
			h.how, h.splice = spliceAfter, uint32(s.pos)
		}
		s.comma()
	}
}

// JSON returns the object's JSON without resourceVersion, without a copy.
func (p Packed) JSON() []byte { return p.json }

// Fingerprint returns what Pack was given; 0 of what has been unpacked.
func (p Packed) Fingerprint() uint64 { return p.fingerprint }

// MustDecode reports that the object has to be decoded before it can be served.
func (p Packed) MustDecode() bool { return p.how == foreign }

// version returns where in the JSON the value of apiVersion lies.
func (p Packed) version() (start, end int) {
	return int(p.apiVersion), int(p.apiVersion) + int(p.size)
}

// HasAPIVersion reports whether the object's apiVersion is v, of plain letters.
func (p Packed) HasAPIVersion(v string) bool {
	start, end := p.version()
	return end-start == len(v)+2 && string(p.json[start+1:end-1]) == v
}

// AppendJSON appends the object's JSON with resourceVersion set to revision
// (left out if 0, or if the object has no metadata).
func (p Packed) AppendJSON(dst []byte, revision int64) []byte {
	return p.appendRange(dst, 0, len(p.json), revision)
}

// AppendJSONAs is AppendJSON with another apiVersion in its place (strategy None).
func (p Packed) AppendJSONAs(dst []byte, apiVersion string, revision int64) []byte {
	js := p.json
	start, end := p.version()
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
	if s.bad || s.pos >= len(js) || p.how != spliceNone && s.pos > int(p.splice) {
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
	js, kind, at := p.json, p.how, int(p.splice)
	if kind == spliceNone || kind == foreign || revision == 0 || at < from || at > to {
		return append(dst, js[from:to]...)
	}
	dst = append(append(dst, js[from:at]...), opens[kind]...)
	dst = strconv.AppendInt(dst, revision, 10)
	return append(append(dst, closes[kind]...), js[at:to]...)
}

// Tree decodes the object into a fresh tree with resourceVersion set to revision
// (left out if 0).
func (p Packed) Tree(revision int64) (Tree, error) {
	t, _, err := DecodeJSON(p.json)
	if err != nil {
		return nil, fmt.Errorf("stored object: %w", err)
	}
	switch m := Metadata(t); {
	case m == nil:
	case revision != 0:
		m[keyResourceVersion] = strconv.FormatInt(revision, 10)
	case p.how == foreign:
		delete(m, keyResourceVersion)
	}
	return t, nil
}
