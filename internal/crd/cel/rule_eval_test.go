package cel

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	schemacel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
	"github.com/trellis-k8s/trellis/internal/fixture/realcrds"
	"github.com/trellis-k8s/trellis/internal/object"
)

// newRuleSchema compiles a schema in YAML or JSON with both implementations.
func newRuleSchema(t *testing.T, name, schema string) *ruleSchema {
	t.Helper()
	var props apiextensionsv1.JSONSchemaProps
	if err := yaml.Unmarshal([]byte(schema), &props); err != nil {
		t.Fatal(name, err)
	}
	theirs := realcrds.Structural(t, &props)
	ours := parsed(t, &props)
	return &ruleSchema{name: name, ours: ours, rules: NewRules(ours), theirs: theirs,
		oracle: schemacel.NewValidator(theirs, true, celconfig.PerCallLimit)}
}

func tree(t *testing.T, text string) object.Tree {
	t.Helper()
	if text == "" {
		return nil
	}
	out, _, err := object.DecodeYAML([]byte(text))
	if err != nil {
		t.Fatal(text, err)
	}
	return out
}

// ruleErrors returns the errors of the rules for an object. It also checks that upstream returns the same errors.
func (s *ruleSchema) ruleErrors(t *testing.T, value, old object.Tree) []string {
	t.Helper()
	compareEvaluation(t, s, "", value, old)
	out := []string{}
	for _, e := range s.rules.Evaluate(t.Context(), value, old, nil) {
		out = append(out, e.Error())
	}
	return out
}

type ruleVector struct {
	Name            string
	Schema          map[string]any
	Rule            string
	Root            bool
	Compile         *bool
	OptionalOldSelf bool `json:"optionalOldSelf"`
	Accept, Reject  []any
	Update          []struct {
		From, To any
		OK       bool
	}
}

// wrap returns an object that contains value at the position of the rule.
func (v *ruleVector) wrap(t *testing.T, value any) object.Tree {
	t.Helper()
	if !v.Root {
		value = map[string]any{"spec": value}
	}
	js, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return tree(t, string(js))
}

// TestSpecificationVectors checks that the rules in the specification's test vectors have the specified results, and
// that upstream has the same results. VAL-054 VAL-055 VAL-056 VAL-057 VAL-058 VAL-059 VAL-060 VAL-061 VAL-062
// VAL-063 VAL-064 VAL-065 VAL-066 VAL-070 VAL-071 VAL-072 VAL-073 VAL-077 VAL-078 VAL-079 VAL-080 VAL-081 VAL-082
// VAL-083 VAL-084 VAL-131 VAL-132 VAL-133 VAL-145 VAL-146 VAL-147 VAL-148 VAL-149
func TestSpecificationVectors(t *testing.T) {
	data, err := os.ReadFile(outside.Path("spec/examples/03-validation/cel-vectors.yaml"))
	if err != nil {
		t.Skip("the examples of the specification do not exist: ../shared/spec/examples, beside the module")
	}
	var vectors []ruleVector
	if err := yaml.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		if v.Compile != nil || v.Rule == "" {
			continue // the rule does not compile, or the rules are in the schema
		}
		v.Schema["x-kubernetes-validations"] = []any{map[string]any{"rule": v.Rule,
			"optionalOldSelf": v.OptionalOldSelf}}
		schema := v.Schema
		if !v.Root {
			schema = map[string]any{"type": "object", "properties": map[string]any{"spec": schema}}
		}
		js, err := json.Marshal(schema)
		if err != nil {
			t.Fatal(err)
		}
		s := newRuleSchema(t, v.Name, string(js))
		for _, value := range v.Accept {
			if errs := s.ruleErrors(t, v.wrap(t, value), nil); len(errs) > 0 {
				t.Errorf("%s: %v: %s", v.Name, value, errs)
			}
		}
		for _, value := range v.Reject {
			if errs := s.ruleErrors(t, v.wrap(t, value), nil); len(errs) == 0 {
				t.Errorf("%s: %v is accepted", v.Name, value)
			}
		}
		for _, u := range v.Update {
			if errs := s.ruleErrors(t, v.wrap(t, u.To), v.wrap(t, u.From)); u.OK != (len(errs) == 0) {
				t.Errorf("%s: from %v to %v: %s", v.Name, u.From, u.To, errs)
			}
		}
	}
}

const bounds = `type: object, properties: {x: {type: integer}, max: {type: integer}, text: {type: string}, m: ` +
	`{type: object, additionalProperties: {type: integer}}, is: {x-kubernetes-int-or-string: true}}`

// TestRuleErrorTexts checks the errors of rules that evaluate to false or that cannot be evaluated.
func TestRuleErrorTexts(t *testing.T) {
	for _, c := range []struct {
		about, rules, value, old string
		want                     []string
	}{
		{"VAL-045 VAL-116: the message", `{rule: self.x <= self.max, message: " too much "}`, `{x: 2, max: 1}`, ``,
			[]string{`<nil>: Invalid value: too much`}},
		{"VAL-046: no message", `{rule: " self.x <= self.max"}`, `{x: 2, max: 1}`, ``,
			[]string{`<nil>: Invalid value: failed rule: self.x <= self.max`}},
		{"VAL-047: every rule", `{rule: self.x < 0, message: a}, {rule: self.max > 0}, {rule: self.x < 1, message: b}`,
			`{x: 2, max: 1}`, ``,
			[]string{`<nil>: Invalid value: a`, `<nil>: Invalid value: b`}},
		{"VAL-107 VAL-111: messageExpression is stronger",
			`{rule: self.x <= self.max, message: a, messageExpression: '"x exceeded max limit of " + ` +
				`string(self.max)'}`, `{x: 2, max: 1}`, ``,
			[]string{`<nil>: Invalid value: x exceeded max limit of 1`}},
		{"VAL-112: it fails", `{rule: "!has(self.x)", message: a, messageExpression: "string(1 / (self.x - 2))"}`,
			`{x: 2}`, ``,
			[]string{`<nil>: Invalid value: a`}},
		{"VAL-113: it is empty", `{rule: "!has(self.x)", message: a, messageExpression: "'  '"}`, `{x: 2}`, ``,
			[]string{`<nil>: Invalid value: a`}},
		{"VAL-113: it has line breaks", `{rule: "!has(self.x)", message: a, messageExpression: "self.text"}`,
			`{x: 2, text: "b\nc"}`, ``,
			[]string{`<nil>: Invalid value: a`}},
		{"VAL-113: a line break at its end does not count",
			`{rule: "!has(self.x)", message: a, messageExpression: "self.text"}`, `{x: 2, text: "b\n"}`, ``,
			[]string{`<nil>: Invalid value: b`}},
		{"VAL-114: it fails, and there is no message",
			`{rule: "!has(self.x)", messageExpression: "string(1 / (self.x - 2))"}`, `{x: 2}`, ``,
			[]string{`<nil>: Invalid value: failed rule: !has(self.x)`}},
		{"VAL-117: 5 KiB", `{rule: "!has(self.x)", message: a, messageExpression: "self.text"}`,
			`{x: 2, text: "` + strings.Repeat("z", 5*1024) + `"}`, ``,
			[]string{`<nil>: Invalid value: ` + strings.Repeat("z", 5*1024)}},
		{"VAL-117: more than 5 KiB", `{rule: "!has(self.x)", message: a, messageExpression: "self.text"}`,
			`{x: 2, text: "` + strings.Repeat("z", 5*1024+1) + `"}`, ``,
			[]string{`<nil>: Invalid value: a`}},
		{"VAL-118 VAL-119 VAL-120: reasons",
			`{rule: "false", message: a, reason: FieldValueInvalid}, {rule: "false", message: b, reason: ` +
				`FieldValueForbidden}, {rule: "false", message: c, reason: FieldValueRequired}, {rule: "false", ` +
				`message: d, reason: FieldValueDuplicate}, {rule: "false", message: e, reason: Odd}`, `{}`, ``,
			[]string{`<nil>: Invalid value: a`, `<nil>: Forbidden: b`, `<nil>: Required value: c`,
				`<nil>: Duplicate value`, `<nil>: Invalid value: e`}},
		{"VAL-122 VAL-123 VAL-125: fieldPath",
			`{rule: "false", message: a, fieldPath: .x}, {rule: "false", message: b, fieldPath: .m.foo}, {rule: ` +
				`"false", message: c, fieldPath: ".m['foo']"}`, `{}`, ``,
			[]string{`x: Invalid value: a`, `m[foo]: Invalid value: b`, `m[foo]: Invalid value: c`}},
		{"a key that is not there", `{rule: "self.m['a'] > 0"}, {rule: "self.x > 0", message: a}`, `{x: 0, m: {}}`, ``,
			[]string{`<nil>: Invalid value: "object": no such key: a evaluating rule: self.m['a'] > 0`,
				`<nil>: Invalid value: a`}},
		{"VAL-062 VAL-094: a string where a number was expected", `{rule: self.is > 1, message: a}`, `{is: b}`, ``,
			[]string{`<nil>: Invalid value: "object": 'no such overload': call arguments did not match a supported ` +
				`operator, function or macro signature for rule: a`}},
		{"VAL-069: null is absent", `{rule: has(self.x)}`, `{x: null}`, ``,
			[]string{`<nil>: Invalid value: failed rule: has(self.x)`}},
		{"VAL-129 VAL-138 VAL-140: a transition rule is skipped on create", `{rule: self.x == oldSelf.x, message: a}`,
			`{x: 1}`, ``, []string{}},
		{"VAL-138: it holds on an update", `{rule: self.x == oldSelf.x, message: a}`, `{x: 1}`, `{x: 2}`,
			[]string{`<nil>: Invalid value: a`}},
		{"VAL-128: optionalOldSelf holds on create", `{rule: oldSelf.hasValue(), optionalOldSelf: true, message: a}`,
			`{x: 1}`, ``,
			[]string{`<nil>: Invalid value: a`}},
	} {
		s := newRuleSchema(t, c.about, `{`+bounds+`, x-kubernetes-validations: [`+c.rules+`]}`)
		got := s.ruleErrors(t, tree(t, c.value), tree(t, c.old))
		if len(got) != len(c.want) || !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%s:\n%s\nwant\n%s", c.about, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// TestRuleValues checks comparisons, combinations and conversions of values. Each rule must be true.
func TestRuleValues(t *testing.T) {
	const fields = `
  set: {type: array, x-kubernetes-list-type: set, items: {type: integer}}
  set2: {type: array, x-kubernetes-list-type: set, items: {type: integer}}
  atomic: {type: array, items: {type: integer}}
  atomic2: {type: array, items: {type: integer}}
  lists: {type: array, items: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k],
  items: {type: object, properties: {k: {type: string}, v: {type: integer}}}}}
  twos: {type: array, items: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k, x-l],
  items: {type: object, properties: {k: {type: string}, x-l: {type: integer}}}}}
  map: {type: object, additionalProperties: {type: integer}}
  kept: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: integer}}}
  embedded: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
  bool: {type: boolean}
  number: {type: number}
  int: {type: integer, format: int32}
  nil: {type: string, nullable: true}
  kept2: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: integer}}}
  nulls: {type: array, items: {type: string, nullable: true}}
  text: {type: string}
  bytes: {type: string, format: byte}
  date: {type: string, format: date}
  time: {type: string, format: date-time}
  datetime: {type: string, format: datetime}
  duration: {type: string, format: duration}
  is: {x-kubernetes-int-or-string: true}
`
	value := tree(t, `
apiVersion: g/v1
kind: K
metadata: {name: name, generateName: g, labels: {a: b}}
set: [1, 2]
set2: [3, 2]
atomic: [1, 2]
atomic2: [2, 1]
lists: [[{k: a, v: 1}, {k: b, v: 2}], [{k: b, v: 3}, {k: c, v: 4}], [{k: b, v: 2}, {k: a, v: 1}]]
twos: [[{k: a, x-l: 1}, {k: a, x-l: 2}], [{k: a, x-l: 2}, {k: a, x-l: 3}]]
map: {a: 1, b: 2}
kept: {a: 1, b: 2}
kept2: {a: 2, b: 2}
embedded: {apiVersion: v1, kind: Pod, metadata: {name: p, generateName: q}}
bool: true
number: 1
int: 2
nil: null
nulls: [a, null]
text: abc
bytes: aGVsbG8=
date: "2024-01-02"
time: "2024-01-02T03:04:05Z"
datetime: "2024-01-02T03:04:05Z"
duration: 90m
is: 5%
`)
	for about, rules := range map[string][]string{
		"VAL-086 VAL-097": {"self.set == [2, 1]", "self.set != [2, 3]", "self.set != self.set2",
			"self.set + self.set2 == [3, 1, 2]"},
		"VAL-087": {"(self.set + self.set2)[2] == 3", "(self.set + self.set2).size() == 3",
			"(self.set + self.set2 + [9, 1]).size() == 4"},
		"VAL-088 VAL-096": {
			"(self.lists[0] + self.lists[1]).map(e, e.v) == [1, 3, 4]", "self.lists[0] == self.lists[2]",
			"self.lists[0] + self.lists[1] == self.lists[2] + self.lists[1]",
			"self.lists[0] != self.lists[1]", "(self.lists[0] + self.lists[1]).size() == 3",
			"(self.lists[0] + self.lists[1] + self.lists[0]).map(e, e.v) == [1, 2, 4]",
			"(self.twos[0] + self.twos[1]).map(e, e.x__dash__l) == [1, 2, 3]"},
		"VAL-089 VAL-095": {"self.atomic != self.atomic2", "self.atomic + self.atomic2 == [1, 2, 2, 1]",
			"2 in self.atomic", "!(3 in self.atomic)"},
		"VAL-067 VAL-074": {"self.apiVersion == 'g/v1'", "self.kind == 'K'", "self.metadata.name == 'name'",
			"self.metadata.generateName == 'g'"},
		"VAL-068": {"has(self.int)", "self.int == 2"},
		"VAL-090 VAL-091": {"self.map['a'] == 1", "'b' in self.map", "!('c' in self.map)",
			"self.map.all(k, self.map[k] > 0)", "self.map == {'b': 2, 'a': 1}", "size(self.map) == 2"},
		"VAL-092": {"self.embedded.kind == 'Pod'", "self.embedded.apiVersion == 'v1'",
			"self.embedded.metadata.name == 'p'", "self.embedded.metadata.generateName == 'q'"},
		"VAL-075": {"has(self.kept.a)", "self.kept.a == 1", "self.kept == self.kept",
			"dyn(self.kept) != dyn(self.kept2)"},
		"VAL-094": {"type(self.is) == string", "self.is == '5%'", "self.is != 5"},
		"VAL-098": {"self.bool", "type(self.bool) == bool"},
		"VAL-099": {"type(self.number) == double", "self.number == 1.0"},
		"VAL-100": {"type(self.int) == int"},
		"VAL-101": {"!has(self.nil)", "dyn(self.nulls[1]) == null", "type(dyn(self.nulls[1])) == null_type"},
		"VAL-102": {"type(self.text) == string", "self.text.size() == 3"},
		"VAL-103": {"self.bytes == b'hello'", "size(self.bytes) == 5", "type(self.bytes) == bytes"},
		"VAL-104 VAL-105": {"self.date < self.time", "self.date.getFullYear() == 2024",
			"type(self.date) == google.protobuf.Timestamp", "type(self.time) == google.protobuf.Timestamp",
			"self.time == timestamp('2024-01-02T03:04:05Z')", "self.time.getHours() == 3",
			"type(self.datetime) == string", "self.datetime == '2024-01-02T03:04:05Z'"},
		"VAL-106": {"self.duration == duration('1h30m')", "self.date + self.duration < self.time",
			"type(self.duration) == google.protobuf.Duration"},
		"VAL-135": {"has(self.text)", "self.set.all(e, e > 0)", "self.set.exists(e, e == 2)",
			"self.set.exists_one(e, e == 1)", "self.set.filter(e, e > 1) == [2]", "self.set.map(e, e * 2) == [2, 4]"},
		"VAL-136": {
			"self.text.charAt(1) == 'b'", "self.text.indexOf('c') == 2", "self.text.indexOf('a', 1) == -1",
			"'abab'.lastIndexOf('b') == 3", "'abab'.lastIndexOf('b', 2) == 1",
			"'ABC'.lowerAscii() == self.text", "self.text.upperAscii() == 'ABC'",
			"self.text.replace('b', 'x') == 'axc'", "'aaa'.replace('a', 'b', 2) == 'bba'",
			"'a,b,c'.split(',') == ['a', 'b', 'c']", "'a,b,c'.split(',', 2) == ['a', 'b,c']",
			"['b', 'c'].join() == 'bc'", "['b', 'c'].join('-') == 'b-c'",
			"self.text.substring(1) == 'bc'", "self.text.substring(1, 2) == 'b'", "' a\t'.trim() == 'a'",
			"'%s has %d'.format([self.text, self.int]) == 'abc has 2'",
			`strings.quote(self.text) == "\"abc\""`},
		"VAL-137": {"self.atomic.isSorted()", "self.atomic.sum() == 3", "self.atomic.max() == 2",
			"self.atomic.min() == 1", "self.atomic.indexOf(2) == 1", "[1, 2, 1].lastIndexOf(1) == 2",
			"self.text.find('b.') == 'bc'", "'a1b2'.findAll('[0-9]') == ['1', '2']",
			"url('https://h:1/p%20q?k=v').getScheme() == 'https'", "url('https://h:1/').getHost() == 'h:1'",
			"url('https://h:1/').getHostname() == 'h'", "url('https://h:1/').getPort() == '1'",
			"url('https://h/p%20q').getEscapedPath() == '/p%20q'", "url('https://h/?k=v').getQuery() == {'k': ['v']}",
			"!format.dns1123Label().validate(self.text).hasValue()", "format.dns1123Label().validate('A').hasValue()",
			"self.atomic.all(i, v, v == i + 1)", "self.map.exists(k, v, k == 'b' && v == 2)",
			"sets.equivalent(self.set, [2, 1])", "sets.intersects(self.set, [2, 3])",
			"isURL('https://h:1/p')", "quantity('1Ki').asInteger() == 1024", "ip('10.0.0.1').family() == 4",
			"cidr('10.0.0.0/8').containsIP('10.1.1.1')", "sets.contains(self.set, [1])",
			"[self.?nil].all(x, !x.hasValue())"},
	} {
		list := []map[string]string{}
		for _, r := range rules {
			list = append(list, map[string]string{"rule": r})
		}
		js, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		s := newRuleSchema(t, about, "type: object\nproperties:"+fields+"x-kubernetes-validations: "+string(js))
		if errs := s.ruleErrors(t, value, nil); len(errs) > 0 {
			t.Errorf("%s: %s", about, strings.Join(errs, "\n"))
		}
	}
}

// TestRulesCorrelate checks that a rule applies to every item of a list and every value of a map, and that oldSelf is
// found through properties, maps and list-type maps.
// VAL-049 VAL-129 VAL-139 VAL-141 VAL-142 VAL-144
func TestRulesCorrelate(t *testing.T) {
	s := newRuleSchema(t, "correlation", `
type: object
properties:
  m: {type: object, additionalProperties: &same {type: string, x-kubernetes-validations: [{rule: self == oldSelf,
  message: changed}]}}
  p: *same
  l: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object,
  properties: {k: {type: string}, v: *same}}}
  each: {type: array, items: {type: integer, x-kubernetes-validations: [{rule: self > 0, message: small}]}}
  level: {type: string,
  x-kubernetes-validations: [{rule: "!(self == 'high' && oldSelf == 'low') && !(self == 'low' && oldSelf == 'high')",
  message: cannot transition directly between 'low' and 'high'}]}
`)
	for _, c := range []struct {
		value, old string
		want       []string
	}{
		{`{m: {a: x, b: w}, p: z}`, ``, []string{}},
		{`{m: {a: x, b: w}, p: z}`, `{m: {a: v}}`, []string{`m[a]: Invalid value: "x": changed`}},
		{`{p: z}`, `{p: w}`, []string{`p: Invalid value: "z": changed`}},
		{`{p: z}`, `{}`, []string{}}, // VAL-129: a new value
		{`{}`, `{p: w}`, []string{}},
		{`{l: [{k: b, v: x}, {k: a, v: w}]}`, `{l: [{k: a, v: z}, {k: b, v: x}]}`,
			[]string{`l[1].v: Invalid value: "w": changed`}},
		{`{l: [{k: b, v: x}]}`, `{l: [{k: c, v: z}]}`, []string{}},
		{`{each: [1, 0, 2, -1]}`, ``, []string{`each[1]: Invalid value: 0: small`,
			`each[3]: Invalid value: -1: small`}},
		{`{level: high}`, `{level: low}`,
			[]string{`level: Invalid value: "high": cannot transition directly between 'low' and 'high'`}},
		{`{level: medium}`, `{level: low}`, []string{}},
		// Rules on the unchanged part of an object do not fail.
		// VAL-033 VAL-041
		{`{each: [1, 0], p: w}`, `{each: [1, 0]}`, []string{}},
		{`{each: [1, 0, 3]}`, `{each: [1, 0]}`, []string{`each[1]: Invalid value: 0: small`}},
	} {
		if got := s.ruleErrors(t, tree(t, c.value), tree(t, c.old)); !slices.Equal(got, c.want) {
			t.Errorf("%s after %s:\n%s\nwant\n%s", c.value, c.old, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// TestMessageExpressionIsLogged checks that a failing messageExpression is logged once for each rule, so that
// clients cannot fill the log.
// VAL-112
func TestMessageExpressionIsLogged(t *testing.T) {
	var log bytes.Buffer
	was := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(was)
	s := newRuleSchema(t, "log", `{`+bounds+
		`, x-kubernetes-validations: [{rule: "false", messageExpression: string(1 / self.x)}]}`)
	for range 3 {
		s.ruleErrors(t, tree(t, `{x: 0}`), nil)
	}
	if n := strings.Count(log.String(), "division by zero"); n != 1 {
		t.Errorf("logged %d times: %s", n, log.String())
	}
}

// numbers returns n lists with m numbers each.
func numbers(n, m int) object.Tree {
	inner := make([]any, m)
	for i := range inner {
		inner[i] = int64(i)
	}
	lists := make([]any, n)
	for i := range lists {
		lists[i] = inner
	}
	return object.Tree{"lists": lists}
}

const listsOf = `{type: object, properties: {lists: {type: array, items: {type: array, items: {type: integer}, ` +
	`x-kubernetes-validations: [%s]}}}}`

// TestRulesAreBounded checks that an expression over the cost limit is stopped and that no other rule runs.
// VAL-115 VAL-151 VAL-162 VAL-168
func TestRulesAreBounded(t *testing.T) {
	for rules, want := range map[string]string{
		`{rule: "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))", message: m},
		{rule: "false"}`: `lists[0]: Invalid value: "array": 'operation cancelled: actual cost limit exceeded': ` +
			`no further validation rules will be run due to call cost exceeds limit for rule: m`,

		`{rule: "false", messageExpression: "self.all(a, self.all(b, self.all(c, a + b + c >= 0))) ? 'a' : 'b'"}, ` +
			`{rule: "false"}`: `lists[0]: Invalid value: "array": no further validation rules will be run due to ` +
			`call cost exceeds limit for messageExpression: "self.all(a, self.all(b, self.all(c, a + b + c >= ` +
			`0))) ? 'a' : 'b'"`,
	} {
		s := newRuleSchema(t, want, fmt.Sprintf(listsOf, rules))
		if errs := s.rules.Evaluate(t.Context(), numbers(2, 100), nil, nil); len(errs) != 1 || errs[0].Error() != want {
			t.Errorf("%s\nwant %s", errs, want)
		}
	}
}

// TestRulesShareABudget checks that all rules and message expressions of an object share one budget, as in upstream.
// VAL-115 VAL-162
func TestRulesShareABudget(t *testing.T) {
	for _, rules := range []string{
		`{rule: "self.all(a, a >= 0)", message: m}`,
		`{rule: "false", messageExpression: "self.all(a, a >= 0) ? 'a' : 'b'"}, {rule: "self.size() > 0"}`,
	} {
		s := newRuleSchema(t, rules, fmt.Sprintf(listsOf, rules))
		value, stopped := numbers(10, 10), 0
		for budget := int64(0); budget < 1000; budget += 7 {
			e := evaluation{ctx: t.Context(), budget: budget}
			e.value(s.rules.tree(), &valuePair{value: value})
			want, left := s.oracle.Validate(t.Context(), nil, s.theirs, value, nil, budget)
			if got, want := errorTexts(e.errs), errorTexts(want); e.budget != left || !slices.Equal(got, want) {
				t.Fatalf("%s with budget %d: got remaining budget %d, upstream %d\n%s\nupstream\n%s",
					rules, budget, e.budget, left, got, want)
			}
			if left < 0 {
				stopped++
			}
		}
		if stopped == 0 || stopped == 143 {
			t.Errorf("%s: %d of 143 budgets were too small", rules, stopped)
		}
	}
}

// TestRulesAreInterrupted checks that rules are interrupted when the request ends.
func TestRulesAreInterrupted(t *testing.T) {
	s := newRuleSchema(t, "interrupted", fmt.Sprintf(listsOf,
		`{rule: "self.all(a, self.all(b, a + b >= 0))", message: m}`))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	errs := s.rules.Evaluate(ctx, numbers(1, 200), nil, nil)
	if len(errs) != 1 || !strings.Contains(errs[0].Detail, "operation interrupted") {
		t.Error(errs)
	}
}
