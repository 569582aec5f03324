package schematest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/object"
)

// rootWith returns a schema with one property.
func rootWith(name string, p props) []byte {
	return asJSON(props{"type": "object", "properties": props{name: p}})
}

// objectWith returns an object with one property in addition to its type and name.
func objectWith(name string, v any) object.Tree {
	return object.Tree{"apiVersion": "example.com/v1", "kind": "Foo", "metadata": object.Tree{"name": "x"}, name: v}
}

// completeWrite does all the work of a write. The test fails if this takes more than two minutes, because exponential
// time would take years.
func completeWrite(t *testing.T, text []byte, obj, old object.Tree) (errs int, first string) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s, err := crd.Compile(text, false)
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
		t.Fatal("the write did not finish within 2 minutes")
	}
	return errs, first
}

// TestSlowDeepNesting checks that schemas and objects with the deepest nesting in a body of 3 MiB are processed fast.
// VAL-168
func TestSlowDeepNesting(t *testing.T) {
	const depth = 2000
	p, v := props{"type": "string"}, any("x")
	for range depth {
		p = props{"type": "object", "properties": props{"a": p}}
		v = object.Tree{"a": v}
	}
	if n, _ := completeWrite(t, rootWith("a", p), objectWith("a", v), objectWith("a", copied(v))); n != 0 {
		t.Errorf("%d errors", n)
	}
	text := rootWith("free", props{"x-kubernetes-preserve-unknown-fields": true})
	var list any = []any{}
	for range depth {
		list = []any{list}
	}
	if n, _ := completeWrite(t, text, objectWith("free", list), nil); n != 0 {
		t.Errorf("%d errors", n)
	}
}

// TestSlowValueValidations checks nested value validations (allOf, anyOf, oneOf), each of which evaluates the value
// again. Upstream walks each level twice, so n levels take 2^n walks. Trellis must take linear time in the size of
// the schema and of the errors.
// VAL-168
func TestSlowValueValidations(t *testing.T) {
	for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
		p := props{"maxLength": 3}
		for range 14 {
			p = props{keyword: []any{p, p}}
		}
		p["type"] = "string"
		if n, _ := completeWrite(t, rootWith("a", p), objectWith("a", "toolong"), nil); n == 0 || n > 3*maxErrors {
			t.Errorf("%s: %d errors", keyword, n)
		}
	}
}

// TestSlowPatterns checks patterns with nested repetitions on texts of 256 KiB. An engine that backtracks would take
// exponential time for them. The errors must equal upstream's.
// VAL-168
func TestSlowPatterns(t *testing.T) {
	const size = 1 << 18
	long := strings.Repeat("a", size)
	for _, test := range []struct {
		pattern, text string
		matches       bool
	}{
		{"^(a+)+$", long + "!", false},
		{"^(a+)+$", long, true},
		{"^(a|aa)*b$", long + "!", false},
		{"^(a|aa)*b$", long + "b", true},
		{"(x+x+)+y", strings.Repeat("x", size), false},
		{"(x+x+)+y", strings.Repeat("x", size) + "y", true},
		{"^(.*.*.*.*.*)*$", long + "\n!", false},
		{"^(.*.*.*.*.*)*$", long + "!", true},
		{"^(?:a{0,900}){0,1}b?$", long + "!", false},
		{"^(?:a{0,900}){0,1}b?$", long[:900] + "b", true},
	} {
		text, obj := rootWith("a", props{"type": "string", "pattern": test.pattern}), objectWith("a", test.text)
		n, first := completeWrite(t, text, obj, nil)
		if matches := n == 0; matches != test.matches {
			t.Errorf("%s: got match %v, want %v", test.pattern, matches, test.matches)
		}
		u, err := newUpstream(text, false)
		if err != nil {
			t.Fatal(err)
		}
		errs := u.validate(t.Context(), obj, nil)
		if len(errs) != n {
			t.Errorf("%s: got %d errors, want %d as upstream", test.pattern, n, len(errs))
		} else if n > 0 && first != errs[0].Error() {
			t.Errorf("%s: the error differs from upstream's", test.pattern)
		}
	}
}

// TestSlowEnums checks that a large enum is indexed and that the error of an unknown value lists it once.
// VAL-168
func TestSlowEnums(t *testing.T) {
	enum, list := []any{}, []any{}
	for i := range 20000 {
		enum = append(enum, fmt.Sprint("value-", i))
		list = append(list, fmt.Sprint("value-", i))
	}
	p := props{"type": "array", "items": props{"type": "string", "enum": enum}}
	if n, _ := completeWrite(t, rootWith("a", p), objectWith("a", list), nil); n != 0 {
		t.Errorf("%d errors", n)
	}
	if n, _ := completeWrite(t, rootWith("a", p), objectWith("a", []any{"other"}), nil); n != 1 {
		t.Errorf("%d errors", n)
	}
}

// TestSlowLists checks that sets and list-type maps with many items are validated fast, also with an old list of the
// same size.
// VAL-168, VAL-041
func TestSlowLists(t *testing.T) {
	const size = 20000
	set, entries := make([]any, size), make([]any, size)
	for i := range size {
		set[i] = fmt.Sprint("v", i)
		entries[i] = object.Tree{"key": fmt.Sprint("k", i), "value": "toolong"}
	}
	if n, _ := completeWrite(t, rootWith("a", props{"type": "array", "x-kubernetes-list-type": "set",
		"items": props{"type": "string"}}), objectWith("a", set), objectWith("a", copied(set))); n != 0 {
		t.Errorf("%d errors", n)
	}
	item := props{"type": "object", "required": []any{"key"},
		"properties": props{"key": props{"type": "string"}, "value": props{"type": "string", "maxLength": 3}}}
	list := props{"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"key"},
		"items": item}
	old := copied(entries).([]any)
	entries[0].(object.Tree)["value"] = "changed"
	if n, first := completeWrite(t, rootWith("a", list), objectWith("a", entries), objectWith("a", old)); n != 1 {
		t.Errorf("%d errors: %s", n, first)
	}
	if n, _ := completeWrite(t, rootWith("a", list), objectWith("a", copied(old)), nil); n == 0 || n > 3*maxErrors {
		t.Errorf("%d errors of %d wrong values", n, size)
	}
}

// TestSlowRules checks that a rule that exceeds its budget is stopped with an error, and that no rule is evaluated
// after it.
// VAL-115, VAL-151, VAL-162
func TestSlowRules(t *testing.T) {
	list := make([]any, 300)
	for i := range list {
		list[i] = int64(i)
	}
	p := props{"type": "array", "items": props{"type": "integer"}, "x-kubernetes-validations": []any{
		props{"rule": "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))"}, props{"rule": "false",
			"message": "never run"}}}
	n, first := completeWrite(t, rootWith("a", p), objectWith("a", list), nil)
	if n != 1 || !strings.Contains(first,
		"no further validation rules will be run due to call cost exceeds limit for rule") {
		t.Errorf("%d errors: %s", n, first)
	}
	p["x-kubernetes-validations"] = []any{props{"rule": "self.all(a, self.exists(b, b == a) || true) && size(self) " +
		"> 500", "messageExpression": "'x' + string(self.all(a, self.all(b, self.all(c, a + b + c >= 0))))"},
		props{"rule": "false"}}
	if n, first = completeWrite(t, rootWith("a", p), objectWith("a", list), nil); n == 0 || n > 2 {
		t.Errorf("%d errors: %s", n, first)
	}
}
