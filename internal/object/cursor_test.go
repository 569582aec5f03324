package object

import "testing"

// walk reads all values that a Cursor can reach and returns their number.
func walk(c *Cursor, depth int) int {
	n := 1
	switch c.Kind() {
	case '{':
		c.Members(func(string) {
			if depth < 50 {
				n += walk(c, depth+1)
			}
		})
	case '[':
		c.Elements(func(int) {
			if depth < 50 {
				n += walk(c, depth+1)
			}
		})
	case '"':
		c.Text()
	default:
		c.Raw()
	}
	return n
}

func TestCursor(t *testing.T) {
	c := NewCursor([]byte(` {"a": [1, "x", {"b": true}], "skipped": {"k": [1,2]}, "list": ["p", "q\n"], "n": -12} `))
	got := map[string]any{}
	c.Members(func(key string) {
		switch key {
		case "a":
			c.Elements(func(i int) {
				if i == 2 {
					c.Members(func(string) { got["b"] = c.Bool() })
				}
			})
		case "list":
			got["list"] = len(c.Texts())
		case "n":
			got["n"] = c.Int()
		}
	})
	if got["b"] != true || got["list"] != 2 || got["n"] != int64(-12) {
		t.Fatalf("read %v", got)
	}
}

func FuzzCursor(f *testing.F) {
	for _, s := range []string{
		``, `{`, `{"a"`, `{"a":`, `[1,`, `[,`, `{"a":[}]}`, `{"a":"b\`, `[[[[`, `{"a":1}}`,
		`{"a":{"b":[1,2,{"c":null}]}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, js []byte) { walk(NewCursor(js), 0) })
}
