package object

import "encoding/hex"

// Summary returns the beginning of a body in the form that upstream quotes in errors. It quotes a body that may be
// JSON as text, and any other body in hexadecimal.
func Summary(data []byte) string {
	const limit = 30
	if len(data) == 0 {
		return "<empty>"
	}
	more := ""
	if len(data) > limit {
		data, more = data[:limit], " ..."
	}
	if data[0] == '{' {
		return string(data) + more
	}
	return hex.EncodeToString(data) + more
}
