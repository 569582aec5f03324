package object

import "encoding/hex"

// Summary is the beginning of a body as upstream quotes it in an error: as text if it
// may be JSON, in hexadecimal otherwise.
func Summary(data []byte) string {
	const most = 30
	if len(data) == 0 {
		return "<empty>"
	}
	more := ""
	if len(data) > most {
		data, more = data[:most], " ..."
	}
	if data[0] == '{' {
		return string(data) + more
	}
	return hex.EncodeToString(data) + more
}
