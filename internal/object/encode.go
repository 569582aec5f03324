package object

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// AppendJSON appends the canonical JSON of v, which is the output of encoding/json: sorted keys, escaped HTML
// characters, no trailing newline. It writes a value that has no JSON form, such as NaN, as null.
func AppendJSON(dst []byte, v any) []byte {
	e := encoders.Get().(*encoder)
	if cap(dst) > 0 {
		dst = e.value(dst, v)
	} else { // return a slice without spare capacity
		e.buffer = e.value(e.buffer[:0], v)
		dst = bytes.Clone(e.buffer)
	}
	e.release()
	return dst
}

// AppendTypedJSON does the same as AppendJSON, but writes a float64 that is a whole number as 2.0, for example. A
// decoder then rejects this value for a Go integer.
func AppendTypedJSON(dst []byte, v any) []byte {
	e := encoder{fractions: true}
	return e.value(dst, v)
}

var encoders = sync.Pool{New: func() any { return new(encoder) }}

// encoder encodes values. Its buffers are reused.
type encoder struct {
	entries   []entry // sorted entries of the objects that are being written
	buffer    []byte
	fractions bool // write a float64 that is a whole number as 2.0, for example
}

func (e *encoder) release() {
	if cap(e.entries) > 1<<12 {
		e.entries = nil
	}
	if cap(e.buffer) > 1<<20 {
		e.buffer = nil
	}
	encoders.Put(e)
}

func (e *encoder) value(dst []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...)
	case string:
		return AppendString(dst, v)
	case bool:
		return strconv.AppendBool(dst, v)
	case int64:
		return strconv.AppendInt(dst, v, 10)
	case float64:
		if e.fractions && v == math.Trunc(v) && math.Abs(v) < 1e21 {
			return append(appendFloat(dst, v), ".0"...)
		}
		return appendFloat(dst, v)
	case Tree:
		return e.object(dst, v)
	case []any:
		return e.array(dst, v)
	default:
		return appendOther(dst, v)
	}
}

// appendOther appends a value whose type does not belong in a tree.
func appendOther(dst []byte, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return append(dst, "null"...)
	}
	return append(dst, b...)
}

func (e *encoder) object(dst []byte, t Tree) []byte {
	if t == nil {
		return append(dst, "null"...)
	}
	base := e.sorted(t)
	dst = append(dst, '{')
	for i := base; i < base+len(t); i++ {
		if i > base {
			dst = append(dst, ',')
		}
		dst = AppendString(dst, e.entries[i].key)
		dst = append(dst, ':')
		dst = e.value(dst, e.entries[i].value)
	}
	e.pop(base)
	return append(dst, '}')
}

// pop removes the entries from base on and clears them, so that their values can be collected.
func (e *encoder) pop(base int) {
	clear(e.entries[base:])
	e.entries = e.entries[:base]
}

// sorted appends the entries of t, sorted by key, and returns the index of the first entry.
func (e *encoder) sorted(t Tree) int {
	base := len(e.entries)
	for k, v := range t {
		e.entries = append(e.entries, entry{k, v})
	}
	list := e.entries[base:]
	if len(list) > 24 {
		slices.SortFunc(list, func(a, b entry) int { return cmp.Compare(a.key, b.key) })
		return base
	}
	for i := 1; i < len(list); i++ {
		x := list[i]
		j := i
		for ; j > 0 && x.key < list[j-1].key; j-- {
			list[j] = list[j-1]
		}
		list[j] = x
	}
	return base
}

func (e *encoder) array(dst []byte, a []any) []byte {
	if a == nil {
		return append(dst, "null"...)
	}
	dst = append(dst, '[')
	for i, v := range a {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = e.value(dst, v)
	}
	return append(dst, ']')
}

// appendFloat appends f as ECMAScript and encoding/json write it.
func appendFloat(dst []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, "null"...)
	}
	if f == 0 { // also true for -0.0: kube-apiserver stores -0 and reads it back as the integer 0
		return append(dst, '0')
	}
	format := byte('f')
	if abs := math.Abs(f); abs < 1e-6 || abs >= 1e21 {
		format = 'e'
	}
	dst = strconv.AppendFloat(dst, f, format, -1, 64)
	if n := len(dst); format == 'e' && n >= 4 && dst[n-4] == 'e' && dst[n-3] == '-' && dst[n-2] == '0' {
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}

// needsNoEscape marks the bytes that encoding/json copies unchanged into a string.
var needsNoEscape = func() (t [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		t[c] = !strings.ContainsRune(`"\<>&`, c)
	}
	return t
}()

// AppendString appends s as a JSON string in the same form as encoding/json.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if needsNoEscape[c] {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			dst = append(dst, s[start:i]...)
			dst = appendEscaped(dst, c)
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r != '\u2028' && r != '\u2029' && (r != utf8.RuneError || size > 1) {
			i += size
			continue
		}
		dst = append(dst, s[start:i]...)
		dst = append(dst, `\u`...)
		for shift := 12; shift >= 0; shift -= 4 {
			dst = append(dst, hexDigits[r>>shift&0xf])
		}
		i += size
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

const hexDigits = "0123456789abcdef"

func appendEscaped(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
}
