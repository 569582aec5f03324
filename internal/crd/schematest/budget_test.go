package schematest

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TestBudgets checks rules and message expressions that exceed the cost limit of one expression or of one write. They
// must stop at the same point as in upstream.
// VAL-151, VAL-162
func TestBudgets(t *testing.T) {
	const costly = "self.contains(self)" // the cost is 0.01 times the square of the length
	most, beyond := strings.Repeat("x", 9900), strings.Repeat("x", 10100)
	text := func(rules ...any) props { return props{"type": "string", "x-kubernetes-validations": rules} }
	list := func(items props, rules ...any) props {
		return props{"type": "array", "items": items, "x-kubernetes-validations": rules}
	}
	rule := func(r string) props { return props{"rule": r} }
	for name, c := range map[string]struct {
		schema props
		value  any
	}{
		"one call": {text(rule(costly), rule("false")), beyond},
		"a message": {text(props{"rule": "false", "messageExpression": costly + " ? 'a' : 'b'"}, rule("false")),
			beyond},
		"a long message":  {text(props{"rule": "false", "messageExpression": "self"}, rule("false")), most},
		"items":           {list(text(rule(costly), rule("true"))), some(14, most)},
		"items and rules": {list(text(rule(costly)), rule("self.all(x, x.contains(x + x))")), some(9, most)},
		"additional": {props{"type": "object", "additionalProperties": list(text(rule(costly)))},
			object.Tree{"k": some(14, most)}},
		"properties": {props{"type": "object", "properties": props{"a": list(text(rule(costly))),
			"b": text(rule("false"))}},
			object.Tree{"a": some(14, most), "b": "x"}},
		"messages": {list(text(props{"rule": "!(" + costly + ")",
			"messageExpression": costly + " ? 'a' : 'b'"})), some(8, most)},
		"message of the last": {list(text(props{"rule": "!(" + costly + ")",
			"messageExpression": costly + " ? 'a' : 'b'"}), rule("self[0].contains(self[0])")), some(8, most)},
		"last item": {props{"type": "object", "properties": props{"a": list(text(rule(costly))),
			"b": list(text(rule("false")))}}, object.Tree{"a": some(11, most), "b": some(2, "x")}},
	} {
		p, err := newPair(rootWith("spec", c.schema))
		if err != nil {
			t.Fatal(err)
		}
		for _, old := range []object.Tree{nil, objectWith("spec", "other")} {
			if v, difference := p.write(objectWith("spec", c.value), old); difference != "" || v != refused {
				t.Errorf("%s: verdict %d\n%.2000s", name, v, difference)
			}
		}
	}
}

func some(n int, v string) (all []any) {
	for range n {
		all = append(all, v)
	}
	return all
}

// TestBudgetsOfDefaults checks that the cost of the rules on the defaults of a CRD equals upstream's, with and
// without an old value.
// DEF-013, VAL-151
func TestBudgetsOfDefaults(t *testing.T) {
	most := strings.Repeat("x", 9900)
	text := func(rule string) props {
		return props{"type": "string", "maxLength": 9900, "default": most,
			"x-kubernetes-validations": []any{props{"rule": rule, "optionalOldSelf": true}}}
	}
	costly := text("oldSelf.hasValue() || self.contains(self)")
	embedded := props{"type": "object", "x-kubernetes-embedded-resource": true,
		"properties": props{"kind": costly, "metadata": props{"type": "object", "properties": props{"name": costly}}}}
	for name, c := range map[string]func(props){
		"properties":         func(s props) { fill(s, "p", 12, costly) },
		"items":              func(s props) { fill(s, "p", 12, props{"type": "array", "items": costly}) },
		"without an old one": func(s props) { fill(s, "p", 12, text("!oldSelf.hasValue() || self.contains(self)")) },
		"embedded resources": func(s props) { fill(s, "p", 12, embedded) },
		"below": func(s props) {
			fill(s, "p", 6,
				props{"type": "object", "properties": props{"a": costly, "b": costly}})
		},
		"an embedded default": func(s props) {
			s["e"] = props{"type": "object",
				"default":    props{"x": props{"apiVersion": "v1", "kind": "a b", "metadata": props{"name": "A B"}}},
				"properties": props{"x": embedded}}
		},
	} {
		at := props{}
		c(at)
		if err := compareCRD(crdOf(props{"type": "object", "properties": at}, nil), &tally{}); err != nil {
			t.Errorf("%s: %.2000v", name, err)
		}
	}
}

func fill(s props, name string, n int, with props) {
	for i := range n {
		s[name+strconv.Itoa(i)] = with
	}
}

// TestFieldPaths checks that all paths of up to three tokens have upstream's errors, as fieldPath and as selectable
// fields.
// VAL-124, PRN-031
func TestFieldPaths(t *testing.T) {
	str := props{"type": "string"}
	root := props{"type": "object", "properties": props{"foo": props{"type": "object",
		"properties": props{"bar": str, "a.b": str, "it's": str}},
		"bar": props{"type": "object", "additionalProperties": str}, "metadata": props{"type": "object",
			"properties": props{"name": str}}}}
	tokens := append([]string{"", ".status", `['it\'s']`, "['" + `\n` + "']"}, pathTokens...)
	rules, selectable := []any{}, []any{}
	for _, a := range []string{"", ".foo", "['foo']", ".bar", ".metadata"} {
		for _, b := range tokens {
			for _, c := range []string{"", ".bar", "]", "['bar'", "x"} {
				rules = append(rules, props{"rule": "true", "fieldPath": a + b + c})
				selectable = append(selectable, props{"jsonPath": a + b + c})
			}
		}
	}
	root["x-kubernetes-validations"] = rules
	for _, list := range [][]any{nil, selectable} {
		if err := compareCRD(crdOf(root, list), &tally{}); err != nil {
			t.Errorf("%.3000v", err)
		}
	}
}

// TestBudgetSpent checks that a write may use its budget completely. The next rule is then not
// evaluated.
// VAL-151, VAL-162
func TestBudgetSpent(t *testing.T) {
	text := func(rule string) props {
		return props{"type": "string", "x-kubernetes-validations": []any{props{"rule": rule}}}
	}
	p, err := newPair(rootWith("spec", props{"type": "object",
		"properties": props{"a": props{"type": "array", "items": text("self.contains(self)")}, "free": text("true")}}))
	if err != nil {
		t.Fatal(err)
	}
	const all = celconfig.RuntimeCELCostBudget
	costOf := func(length int) int {
		_, left := p.theirs.rules.Validate(t.Context(), nil, p.theirs.structural,
			objectWith("spec", object.Tree{"a": []any{strings.Repeat("x", length)}}), nil, all)
		return int(all - left)
	}
	var spent []any
	left, least := all, costOf(0)
	for length := 9900; left > 0 && length > 0; length -= 10 {
		cost := costOf(length)
		for left-cost >= 0 && (left-cost > 1000 || (left-cost)%least == 0) {
			spent, left = append(spent, strings.Repeat("x", length)), left-cost
		}
	}
	for ; left >= least; left -= least {
		spent = append(spent, "")
	}
	if left != 0 {
		t.Fatalf("got remaining budget %d, want 0", left)
	}
	for name, c := range map[string]struct {
		spec object.Tree
		want verdict
	}{
		"all":             {object.Tree{"a": spent}, accepted},
		"one more":        {object.Tree{"a": append(slices.Clone(spent), "")}, refused},
		"two more":        {object.Tree{"a": append(slices.Clone(spent), "", "")}, refused},
		"one for nothing": {object.Tree{"a": spent, "free": "x"}, refused},
	} {
		if v, difference := p.write(objectWith("spec", c.spec), nil); difference != "" || v != c.want {
			t.Errorf("%s: verdict %d\n%.2000s", name, v, difference)
		}
	}
}
