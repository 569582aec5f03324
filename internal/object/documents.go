package object

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Document is one document of a manifest file.
type Document struct {
	Text []byte // slice of the file, not a copy
	Line int    // number of lines in the file before the document
}

// Documents splits a manifest file as kubectl does. A file that begins with "{" is split into its JSON values. Any
// other file, and a file with invalid JSON, is split at YAML's "---" lines. Documents returns an error if a "---"
// line contains text other than a comment.
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
