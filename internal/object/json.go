package object

// DecodeJSON decodes one JSON object. duplicates names each repeated key by its
// path ("spec.foo", "spec.ports[0].name") in order of appearance; the last value wins.
// The error is what encoding/json would say of the same input; nesting deeper
// than 10,000 is an error.
func DecodeJSON(data []byte) (t Tree, duplicates []string, err error) { panic("object: DecodeJSON") }

// DecodeYAML is DecodeJSON for YAML (sigs.k8s.io/yaml semantics).
func DecodeYAML(data []byte) (t Tree, duplicates []string, err error) { panic("object: DecodeYAML") }

// AppendJSON appends the canonical JSON of v: keys sorted, as encoding/json
// writes it (HTML characters escaped), no trailing newline.
func AppendJSON(dst []byte, v any) []byte { panic("object: AppendJSON") }

// Copy returns a deep copy of t.
func Copy(t Tree) Tree { panic("object: Copy") }

// Equal reports whether two values of trees are deeply equal (semantic: an
// int64 and a float64 are never equal).
func Equal(a, b any) bool { panic("object: Equal") }
