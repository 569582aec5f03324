package object

import (
	"unicode/utf16"
	"unicode/utf8"
)

// unescaped marks the bytes that represent themselves in a JSON string.
var unescaped = func() (t [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// scanString decodes the JSON string whose first byte after the quote is at start. end is the offset after the
// closing quote. A text without escapes is a substring of s. Invalid UTF-8 becomes U+FFFD, as in encoding/json.
func scanString(s string, start int) (text string, end int, ok bool) {
	i := start
	for i < len(s) && unescaped[s[i]] {
		i++
	}
	if i < len(s) && s[i] == '"' {
		return s[start:i], i + 1, true
	}
	escaped := false
	for ; i < len(s) && s[i] != '"'; i++ {
		switch c := s[i]; {
		case c < ' ':
			return "", i, false
		case c == '\\':
			escaped = true
			i++
		}
	}
	if i >= len(s) {
		return "", len(s), false
	}
	raw := s[start:i]
	if !escaped && utf8.ValidString(raw) {
		return raw, i + 1, true
	}
	text, ok = unescape(raw)
	return text, i + 1, ok
}

// unescape decodes the content of a JSON string without its quotes.
func unescape(raw string) (string, bool) {
	out := make([]byte, 0, len(raw)+utf8.UTFMax)
	for i := 0; i < len(raw); {
		c := raw[i]
		switch {
		case c < ' ':
			return "", false
		case c == '\\':
			var ok bool
			if out, i, ok = appendEscape(out, raw, i+1); !ok {
				return "", false
			}
		case c < utf8.RuneSelf:
			out = append(out, c)
			i++
		default:
			r, size := utf8.DecodeRuneInString(raw[i:])
			out = utf8.AppendRune(out, r)
			i += size
		}
	}
	return string(out), true
}

// appendEscape decodes the escape whose letter is at i and returns the offset after it.
func appendEscape(out []byte, raw string, i int) ([]byte, int, bool) {
	if i >= len(raw) {
		return out, i, false
	}
	c := raw[i]
	switch c {
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'u':
		return appendUnicode(out, raw, i+1)
	default:
		return out, i, false
	}
	return append(out, c), i + 1, true
}

// appendUnicode decodes the four hexadecimal digits at i, and the second escape of a surrogate pair.
func appendUnicode(out []byte, raw string, i int) ([]byte, int, bool) {
	r, ok := hex4(raw, i)
	if !ok {
		return out, i, false
	}
	i += 4
	if !utf16.IsSurrogate(r) {
		return utf8.AppendRune(out, r), i, true
	}
	if i+1 < len(raw) && raw[i] == '\\' && raw[i+1] == 'u' {
		if low, ok := hex4(raw, i+2); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return utf8.AppendRune(out, pair), i + 6, true
			}
		}
	}
	return utf8.AppendRune(out, utf8.RuneError), i, true
}

func hex4(s string, i int) (rune, bool) {
	if i+4 > len(s) {
		return 0, false
	}
	var r rune
	for _, c := range []byte(s[i : i+4]) {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20-'a' < 6:
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
