package crd

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/fixture/realcrds"
	"github.com/trellis-k8s/trellis/internal/object"
)

func mustCompile(t testing.TB, js string) *Compiled {
	t.Helper()
	s, err := Compile([]byte(js), false)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// validate returns the texts of the errors for clients.
func validate(t *testing.T, s *Compiled, tree, old object.Tree) []string {
	t.Helper()
	out := []string{}
	for _, err := range s.Validate(t.Context(), tree, old, nil) {
		out = append(out, err.Error())
	}
	return out
}

func wantErrors(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

const cronTab = `{"type":"object","properties":{"spec":{"type":"object","required":["image"],"properties":{
	"cronSpec":{"type":"string","pattern":"^(\\d+|\\*)(/\\d+)?(\\s+(\\d+|\\*)(/\\d+)?){4}$"},
	"image":{"type":"string","maxLength":5},"policy":{"enum":["a","b"]},"replicas":{"type":"integer","minimum":1,
	"maximum":10}}}}}`

// TestValidateReportsAllErrors checks that one validation reports all errors of an object.
// VAL-019, VAL-020, VAL-022, VAL-026
func TestValidateReportsAllErrors(t *testing.T) {
	s := mustCompile(t, cronTab)
	spec := func(fields ...any) object.Tree {
		out := object.Tree{}
		for i := 0; i < len(fields); i += 2 {
			out[fields[i].(string)] = fields[i+1]
		}
		return object.Tree{"spec": out}
	}
	wantErrors(t, validate(t, s, spec("cronSpec", "* * * *", "replicas", int64(15), "policy", "c", "image", "too-long"),
		nil),
		`spec.cronSpec: Invalid value: "* * * *": spec.cronSpec in body should match `+
			`'^(\d+|\*)(/\d+)?(\s+(\d+|\*)(/\d+)?){4}$'`,
		`spec.image: Too long: may not be more than 5 bytes`,
		`spec.policy: Unsupported value: "c": supported values: "a", "b"`,
		`spec.replicas: Invalid value: 15: spec.replicas in body should be less than or equal to 10`)
	wantErrors(t, validate(t, s, spec("replicas", "5"), nil),
		`spec.replicas: Invalid value: "string": spec.replicas in body must be of type integer: "string"`,
		`spec.image: Required value`)
	wantErrors(t, validate(t, s, spec("cronSpec", "* * * * */5", "replicas", int64(5), "image", "x"), nil))
}

// TestValidateRatchets checks that an update ignores the errors of unchanged values and reports those of changed
// values.
// VAL-029, VAL-030, VAL-031
func TestValidateRatchets(t *testing.T) {
	s := mustCompile(t, cronTab)
	old := object.Tree{"spec": object.Tree{"image": "x", "replicas": int64(20), "policy": "a"}}
	same := object.Tree{"spec": object.Tree{"image": "y", "replicas": int64(20), "policy": "b"}}
	wantErrors(t, validate(t, s, same, old))
	worse := object.Tree{"spec": object.Tree{"image": "x", "replicas": int64(21), "policy": "a"}}
	wantErrors(t, validate(t, s, worse, old),
		`spec.replicas: Invalid value: 21: spec.replicas in body should be less than or equal to 10`)
	wantErrors(t, validate(t, s, object.Tree{"spec": object.Tree{"policy": "a"}},
		object.Tree{"spec": object.Tree{"policy": "b"}}),
		`spec.image: Required value`) // VAL-037
}

// TestValidateDoesNotRatchetValueValidations checks that schemas below allOf, anyOf, oneOf and not are validated
// even if their values are unchanged.
// VAL-032
func TestValidateDoesNotRatchetValueValidations(t *testing.T) {
	for keyword, message := range map[string]string{
		"allOf": "must validate all the schemas (allOf). None validated",
		"anyOf": "must validate at least one schema (anyOf)",
		"oneOf": "must validate one and only one schema (oneOf). Found none valid",
	} {
		s := mustCompile(t, `{"type":"object","properties":{"a":{"type":"object",`+
			`"properties":{"b":{"type":"integer"},"c":{"type":"integer"}},"`+
			keyword+`":[{"properties":{"b":{"minimum":5}}}]}}}`)
		old := object.Tree{"a": object.Tree{"b": int64(1), "c": int64(1)}}
		changed := object.Tree{"a": object.Tree{"b": int64(1), "c": int64(2)}}
		wrong := []string{`a.b: Invalid value: 1: a.b in body should be greater than or equal to 5`,
			`<nil>: Invalid value: "": "a" ` + message}
		if keyword != "allOf" {
			wrong[0], wrong[1] = wrong[1], wrong[0]
		}
		wantErrors(t, validate(t, s, changed, old), wrong...)
		wantErrors(t, validate(t, s, old, old))
	}
}

// TestValidateRatchetsListMaps checks that each item of a list-type map is compared with the old item that has the
// same keys. Items of other lists are not compared with old items.
// VAL-041
func TestValidateRatchetsListMaps(t *testing.T) {
	list := func(kind string) *Compiled {
		return mustCompile(t, `{"type":"object","properties":{"l":{"type":"array",`+kind+
			`"items":{"type":"object","properties":{
			"k":{"type":"string"},"v":{"type":"integer","maximum":1},"w":{"type":"integer"}}}}}}`)
	}
	item := func(k string, v, w int64) any { return object.Tree{"k": k, "v": v, "w": w} }
	old := object.Tree{"l": []any{item("a", 5, 0), item("b", 6, 0)}}
	moved := object.Tree{"l": []any{item("b", 6, 1), item("a", 5, 1)}}
	wantErrors(t, validate(t, list(`"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],`), moved, old))
	for _, kind := range []string{``, `"x-kubernetes-list-type":"set",`, `"x-kubernetes-list-type":"atomic",`} {
		wantErrors(t, validate(t, list(kind), old, old))
		wantErrors(t, validate(t, list(kind), moved, old),
			`l[0].v: Invalid value: 6: l[0].v in body should be less than or equal to 1`,
			`l[1].v: Invalid value: 5: l[1].v in body should be less than or equal to 1`)
	}
}

// TestValidateIsBounded checks that validation stays fast for many errors, large enumerations, nested value
// validations and long strings with patterns.
func TestValidateIsBounded(t *testing.T) {
	names := strings.Repeat(`"a-value-of-a-large-enumeration",`, 20000) + `"z"`
	nested := `{"type":"object"}`
	for i := range 300 {
		nested = fmt.Sprintf(`{"type":"object","properties":{"x":%s},"allOf":[{"required":["a%d"]},`+
			`{"anyOf":[{"required":["b"]},{"required":["c"]}]}]}`, nested, i)
	}
	list := make([]any, 100_000)
	for i := range list {
		list[i] = "no"
	}
	var distinct strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&distinct, `"value-%05d",`, i)
	}
	distinct.WriteString(`"z"`)
	last := make([]any, 100_000)
	for i := range last {
		last[i] = "z"
	}
	deep := object.Tree{}
	for range 300 {
		deep = object.Tree{"x": deep}
	}
	for name, c := range map[string]struct {
		schema string
		tree   object.Tree
	}{
		"errors": {`{"properties":{"l":{"items":{"type":"integer"}}}}`, object.Tree{"l": list}},
		"enum":   {`{"properties":{"l":{"items":{"enum":[` + names + `]}}}}`, object.Tree{"l": list}},
		"last": {`{"properties":{"n":{"type":"null"},"l":{"items":{"enum":[` + distinct.String() + `]}}}}`,
			object.Tree{"n": "x", "l": last}},
		"branches": {nested, deep},
		"pattern": {`{"properties":{"s":{"pattern":"^(a+)+$"}}}`,
			object.Tree{"s": strings.Repeat("a", 100_000) + "b"}},
	} {
		start := time.Now()
		errs := mustCompile(t, c.schema).Validate(t.Context(), c.tree, nil, nil)
		size := 0
		for _, e := range errs {
			size += len(e.Detail)
		}
		if len(errs) == 0 || len(errs) > schema.MaxProblems || size > 2*schema.MaxMessageBytes {
			t.Errorf("%s: %d errors of %d bytes", name, len(errs), size)
		}
		t.Logf("%s: %v", name, time.Since(start))
	}
}

// TestValidateStopsAtStepLimit checks that validation that would take hours stops with an error.
func TestValidateStopsAtStepLimit(t *testing.T) {
	c := map[string]struct {
		schema string
		tree   object.Tree
	}{
		"pattern": {`{"properties":{"s":{"pattern":"^` + strings.Repeat("a?", 10_000) + `$"}}}`,
			object.Tree{"s": strings.Repeat("a", 1_000_000)}},
		"repeated": {`{"properties":{"s":{"pattern":"^((a?b?c?){300})|(d?){1000}$"}}}`,
			object.Tree{"s": strings.Repeat("a", 3_000_000)}},
	}
	if realcrds.Whole() { // slow: uses all steps
		list := make([]any, 100_000)
		for i := range list {
			list[i] = int64(i)
		}
		some := strings.Repeat(`{"not":{"minimum":-1,"maximum":-1}},`, 20_000)
		c["branches"] = struct {
			schema string
			tree   object.Tree
		}{`{"properties":{"l":{"items":{"allOf":[` + some + `{}]}}}}`, object.Tree{"l": list}}
	}
	for name, c := range c {
		start := time.Now()
		errs := mustCompile(t, c.schema).Validate(t.Context(), c.tree, nil, nil)
		if len(errs) != 1 || !strings.Contains(errs[0].Detail, "too complex") {
			t.Errorf("%s: %v", name, errs)
		}
		t.Logf("%s: %v", name, time.Since(start))
	}
}

// TestValidateRatchetsManyErrors checks that an unchanged value with more errors than the limit is accepted.
// VAL-029
func TestValidateRatchetsManyErrors(t *testing.T) {
	s := mustCompile(t, `{"type":"object","properties":{"l":{"type":"array","items":{"type":"integer"}},`+
		`"m":{"type":"integer"}}}`)
	list := make([]any, 3*schema.MaxProblems)
	for i := range list {
		list[i] = "no"
	}
	old := object.Tree{"l": list, "m": int64(1)}
	wantErrors(t, validate(t, s, object.Tree{"l": object.CopyValue(list), "m": int64(2)}, old))
	wantErrors(t, validate(t, s, object.Tree{"l": object.CopyValue(list), "m": "x"}, old),
		`m: Invalid value: "string": m in body must be of type integer: "string"`)
}

// TestValidateAllocatesNothing checks that the validation of a valid object allocates no memory.
func TestValidateAllocatesNothing(t *testing.T) {
	s := mustCompile(t, cronTab)
	tree := object.Tree{"spec": object.Tree{"cronSpec": "* * * * */5", "replicas": int64(5), "image": "x",
		"policy": "a"}}
	if n := testing.AllocsPerRun(100, func() { s.Validate(t.Context(), tree, tree, nil) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzValidate checks that validation does not panic for any schema and object.
func FuzzValidate(f *testing.F) {
	f.Add([]byte(cronTab), []byte(`{"spec":{"cronSpec":"* * * *","replicas":15}}`), []byte(`{"spec":{"image":"x"}}`))
	f.Add([]byte(`{"type":"object","properties":{"l":{"type":"array","x-kubernetes-list-type":"map",
	"x-kubernetes-list-map-keys":["a","b"],
		"items":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"not":{"multipleOf":0.1}}]}}},
		"additionalProperties":false}`),
		[]byte(`{"l":[{"a":1,"b":2.5},null,3]}`), []byte(`{"l":[{"a":1,"b":2.5}]}`))
	f.Fuzz(func(t *testing.T, schema, now, before []byte) {
		s, err := Compile(schema, false)
		if err != nil {
			return
		}
		tree, _, err := object.DecodeJSON(now)
		if err != nil {
			return
		}
		old, _, err := object.DecodeJSON(before)
		if err != nil {
			old = nil
		}
		for _, errs := range []field.ErrorList{s.Validate(t.Context(), tree, old, nil),
			s.ValidateStatus(t.Context(), tree, old, nil)} {
			_ = errs.ToAggregate()
		}
	})
}

// TestRulesAreBlocked checks that rules are not evaluated on values of wrong types.
// VAL-165
func TestRulesAreBlocked(t *testing.T) {
	s := mustCompile(t, `{"type":"object","required":["x"],"properties":{"x":{"type":"integer","maximum":3,
		"x-kubernetes-validations":[{"rule":"self > 9","message":"m"}]}}}`)
	const blocked = "<nil>: Invalid value: null: some validation rules were not checked because the object was " +
		"invalid; correct the existing errors to complete validation"
	for value, want := range map[string][]string{
		`{"x":10}`:  {"x: Invalid value: 10: x in body should be less than or equal to 3"},
		`{"x":4}`:   {"x: Invalid value: 4: x in body should be less than or equal to 3", "x: Invalid value: 4: m"},
		`{}`:        {"x: Required value", blocked},
		`{"x":"a"}`: {`x: Invalid value: "string": x in body must be of type integer: "string"`, blocked},
	} {
		tree, _, err := object.DecodeJSON([]byte(value))
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, e := range s.Validate(t.Context(), tree, nil, nil) {
			got = append(got, e.Error())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %s\nwant %s", value, got, want)
		}
	}
}
