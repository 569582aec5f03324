package openapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"unicode/utf8"
)

// errMalformed says that JSON which the server itself keeps is broken.
var errMalformed = errors.New("malformed JSON")

// maxDepth is how deep values may nest; a CRD cannot be stored with more.
const maxDepth = 10000

// cursor reads JSON once, from front to back, without decoding what nobody looks at.
// Slices it gives out are parts of data.
type cursor struct {
	data  []byte
	i     int
	depth int
}

// peek returns the first byte of the next value, or 0 at the end.
func (c *cursor) peek() byte {
	for c.i < len(c.data) {
		switch b := c.data[c.i]; b {
		case ' ', '\t', '\n', '\r':
			c.i++
		default:
			return b
		}
	}
	return 0
}

// accept reads b if it comes next.
func (c *cursor) accept(b byte) bool {
	if c.peek() != b {
		return false
	}
	c.i++
	return true
}

// object reads an object. each is called with a key, in its quotes, and reads the value.
func (c *cursor) object(each func(key []byte) error) error {
	return c.sequence('{', '}', func() error {
		if c.peek() != '"' {
			return errMalformed
		}
		key, err := c.skip()
		if err != nil {
			return err
		}
		if !c.accept(':') {
			return errMalformed
		}
		return each(key)
	})
}

// array reads an array. each reads one item.
func (c *cursor) array(each func() error) error { return c.sequence('[', ']', each) }

func (c *cursor) sequence(open, end byte, each func() error) error {
	if !c.accept(open) {
		return errMalformed
	}
	if c.depth++; c.depth > maxDepth {
		return errMalformed
	}
	defer func() { c.depth-- }()
	if c.accept(end) {
		return nil
	}
	for {
		if err := each(); err != nil {
			return err
		}
		if c.accept(end) {
			return nil
		}
		if !c.accept(',') {
			return errMalformed
		}
	}
}

// skip reads any value and returns its text.
func (c *cursor) skip() ([]byte, error) {
	first := c.peek()
	start := c.i
	switch first {
	case '"':
		if !c.skipString() {
			return nil, errMalformed
		}
	case '{', '[':
		if !c.skipNested() {
			return nil, errMalformed
		}
	default:
		for c.i < len(c.data) && !bytes.ContainsRune([]byte(" \t\r\n,]}:"), rune(c.data[c.i])) {
			c.i++
		}
		if c.i == start {
			return nil, errMalformed
		}
	}
	return c.data[start:c.i], nil
}

func (c *cursor) skipString() bool {
	for c.i++; c.i < len(c.data); c.i++ {
		switch c.data[c.i] {
		case '"':
			c.i++
			return true
		case '\\':
			c.i++
		}
	}
	return false
}

func (c *cursor) skipNested() bool {
	depth := 0
	for c.i < len(c.data) {
		switch c.data[c.i] {
		case '"':
			if !c.skipString() {
				return false
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		c.i++
		if depth == 0 {
			return true
		}
	}
	return false
}

// unquote returns the text of a JSON string.
func unquote(raw []byte) (string, error) {
	if len(raw) >= 2 && raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw) {
		return string(raw[1 : len(raw)-1]), nil
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err
}

// appendString appends s as a JSON string.
func appendString(dst []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if b := s[i]; b < ' ' || b == '"' || b == '\\' || b >= 0x7f {
			quoted, err := json.Marshal(s)
			if err != nil {
				return append(dst, `""`...) // strings always encode
			}
			return append(dst, quoted...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}
