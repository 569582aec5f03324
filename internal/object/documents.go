package object

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Document is one document of a file of manifests.
type Document struct {
	Text []byte // a part of the file, not a copy
	Line int    // how many lines of the file are in front of it
}

// Documents splits a file as kubectl does: one that begins with "{" into the JSON values in it, any other, and one that is
// not JSON after all, at the lines "---" of YAML. The error is a line that begins with "---" and has more than a comment.
func Documents(data []byte) ([]Document, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		if all, ok := jsonDocuments(data); ok {
			return all, nil
		}
	}
	return yamlDocuments(data)
}

func jsonDocuments(data []byte) (all []Document, ok bool) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	for line, counted := 0, 0; decoder.More(); {
		var text json.RawMessage
		if decoder.Decode(&text) != nil {
			return nil, false
		}
		end := int(decoder.InputOffset())
		at := end - len(text)
		line += bytes.Count(data[counted:at], newline)
		counted = at
		all = append(all, Document{data[at:end], line})
	}
	return all, true
}

var newline = []byte("\n")

func yamlDocuments(data []byte) (all []Document, err error) {
	from, first := 0, 0
	for at, line := 0, 0; at < len(data); line++ {
		end := len(data)
		if n := bytes.IndexByte(data[at:], '\n'); n >= 0 {
			end = at + n + 1
		}
		if rest, ok := bytes.CutPrefix(data[at:end], []byte("---")); ok {
			if rest = bytes.TrimSpace(rest); len(rest) > 0 && rest[0] != '#' {
				return nil, fmt.Errorf("line %d: only a comment may follow --- on a line", line+1)
			}
			all = append(all, Document{data[from:at], first})
			from, first = end, line+1
		}
		at = end
	}
	return append(all, Document{data[from:], first}), nil
}
