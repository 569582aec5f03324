package schematest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/schema"
)

// root is a schema with one property.
func rootWith(name string, p props) []byte {
	return asJSON(props{"type": "object", "properties": props{name: p}})
}

// written is an object of a kind with the value at one property.
func written(name string, v any) object.Tree {
	return object.Tree{"apiVersion": "example.com/v1", "kind": "Foo", "metadata": object.Tree{"name": "x"}, name: v}
}

// whole does all that a write does. It fails the test where that takes beyond all measure: what
// must not grow exponentially would take years.
func whole(t *testing.T, text []byte, obj, old object.Tree) (errs int, first string) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s, err := schema.Compile(text, false)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := s.Normalize(obj); err != nil {
			t.Error(err)
			return
		}
		list := s.Validate(context.Background(), obj, old, nil)
		if errs = len(list); errs > 0 {
			first = list[0].Error()
		}
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatal("it goes on and on")
	}
	return errs, first
}

// VAL-168: schemas and objects may be nested as deep as a body of 3 MiB can hold.
func TestSlowDeepNesting(t *testing.T) {
	const depth = 2000
	p, v := props{"type": "string"}, any("x")
	for range depth {
		p = props{"type": "object", "properties": props{"a": p}}
		v = object.Tree{"a": v}
	}
	if n, _ := whole(t, rootWith("a", p), written("a", v), written("a", copied(v))); n != 0 {
		t.Errorf("%d errors", n)
	}
	text := rootWith("free", props{"x-kubernetes-preserve-unknown-fields": true})
	var list any = []any{}
	for range depth {
		list = []any{list}
	}
	if n, _ := whole(t, text, written("free", list), nil); n != 0 {
		t.Errorf("%d errors", n)
	}
}

// VAL-168: junctors in junctors, each of which looks at the value again: what upstream walks twice a level, for
// 2^n times in all, costs no more than there is to read and to say.
func TestSlowJunctors(t *testing.T) {
	for _, junctor := range []string{"allOf", "anyOf", "oneOf"} {
		p := props{"maxLength": 3}
		for range 14 {
			p = props{junctor: []any{p, p}}
		}
		p["type"] = "string"
		if n, _ := whole(t, rootWith("a", p), written("a", "toolong"), nil); n == 0 || n > 3*many {
			t.Errorf("%s: %d errors", junctor, n)
		}
	}
}

// VAL-168: no pattern makes matching slower than the text is long.
func TestSlowPatterns(t *testing.T) {
	for _, expr := range []string{"^(a+)+$", "^(a|aa)*b$", "(x+x+)+y", "^(.*.*.*.*.*)*$", "^(?:a{0,900}){0,1}b?$"} {
		p := props{"type": "string", "pattern": expr}
		whole(t, rootWith("a", p), written("a", strings.Repeat("a", 1<<18)+"!"), nil)
	}
}

// VAL-168: values are found in a large enum, and the error of one that is not lists it once.
func TestSlowEnums(t *testing.T) {
	enum, list := []any{}, []any{}
	for i := range 20000 {
		enum = append(enum, fmt.Sprint("value-", i))
		list = append(list, fmt.Sprint("value-", i))
	}
	p := props{"type": "array", "items": props{"type": "string", "enum": enum}}
	if n, _ := whole(t, rootWith("a", p), written("a", list), nil); n != 0 {
		t.Errorf("%d errors", n)
	}
	if n, _ := whole(t, rootWith("a", p), written("a", []any{"other"}), nil); n != 1 {
		t.Errorf("%d errors", n)
	}
}

// VAL-168, VAL-041: lists of many items, as sets, as maps, ratcheted against as many.
func TestSlowLists(t *testing.T) {
	const size = 20000
	set, entries := make([]any, size), make([]any, size)
	for i := range size {
		set[i] = fmt.Sprint("v", i)
		entries[i] = object.Tree{"key": fmt.Sprint("k", i), "value": "toolong"}
	}
	if n, _ := whole(t, rootWith("a", props{"type": "array", "x-kubernetes-list-type": "set", "items": props{"type": "string"}}), written("a", set), written("a", copied(set))); n != 0 {
		t.Errorf("%d errors", n)
	}
	item := props{"type": "object", "required": []any{"key"}, "properties": props{"key": props{"type": "string"}, "value": props{"type": "string", "maxLength": 3}}}
	list := props{"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"key"}, "items": item}
	old := copied(entries).([]any)
	entries[0].(object.Tree)["value"] = "changed"
	if n, first := whole(t, rootWith("a", list), written("a", entries), written("a", old)); n != 1 {
		t.Errorf("%d errors: %s", n, first)
	}
	if n, _ := whole(t, rootWith("a", list), written("a", copied(old)), nil); n == 0 || n > 3*many {
		t.Errorf("%d errors of %d wrong values", n, size)
	}
}

// VAL-115, VAL-151, VAL-162: a rule that runs away is stopped by its budget, with an error, and none is run after it.
func TestSlowRules(t *testing.T) {
	list := make([]any, 300)
	for i := range list {
		list[i] = int64(i)
	}
	p := props{"type": "array", "items": props{"type": "integer"}, "x-kubernetes-validations": []any{
		props{"rule": "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))"}, props{"rule": "false", "message": "never run"}}}
	n, first := whole(t, rootWith("a", p), written("a", list), nil)
	if n != 1 || !strings.Contains(first, "no further validation rules will be run due to call cost exceeds limit for rule") {
		t.Errorf("%d errors: %s", n, first)
	}
	p["x-kubernetes-validations"] = []any{props{"rule": "self.all(a, self.exists(b, b == a) || true) && size(self) > 500", "messageExpression": "'x' + string(self.all(a, self.all(b, self.all(c, a + b + c >= 0))))"}, props{"rule": "false"}}
	if n, first = whole(t, rootWith("a", p), written("a", list), nil); n == 0 || n > 2 {
		t.Errorf("%d errors: %s", n, first)
	}
}
