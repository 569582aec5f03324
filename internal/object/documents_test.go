package object

import (
	"slices"
	"testing"
)

func TestDocuments(t *testing.T) {
	for name, c := range map[string]struct {
		data  string
		texts []string
		lines []int
	}{
		"one": {"a: 1\n", []string{"a: 1\n"}, []int{0}},
		"several": {"a: 1\n---\nb: 2\n--- # the last\nc: 3", []string{"a: 1\n", "b: 2\n", "c: 3"},
			[]int{0, 2, 4}},
		"CRLF": {"a: 1\r\n---\r\nb: 2\r\n", []string{"a: 1\r\n", "b: 2\r\n"}, []int{0, 2}},
		"JSON": {"\ufeff{\"a\":1}\n\n{\"b\":2}{\"c\":3}\n", []string{`{"a":1}`, `{"b":2}`, `{"c":3}`},
			[]int{0, 2, 2}},
		"YAML in braces":     {"{a: 1}\n---\n{b: 2}\n", []string{"{a: 1}\n", "{b: 2}\n"}, []int{0, 2}},
		"JSON between lines": {"{\"a\":1}\n---\n{\"b\":2}\n", []string{"{\"a\":1}\n", "{\"b\":2}\n"}, []int{0, 2}},
	} {
		all, err := Documents([]byte(c.data))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var texts []string
		var lines []int
		for _, d := range all {
			texts, lines = append(texts, string(d.Text)), append(lines, d.Line)
		}
		if !slices.Equal(texts, c.texts) || !slices.Equal(lines, c.lines) {
			t.Errorf("%s: got %q at lines %v, want %q at %v", name, texts, lines, c.texts, c.lines)
		}
	}
	_, err := Documents([]byte("a: 1\n--- b: 2\n"))
	if err == nil || err.Error() != "line 2: only a comment may follow --- on a line" {
		t.Errorf("text after ---: got error %v", err)
	}
}
