package cel

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	schemacel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/fixture/outside"
	"github.com/trellis-k8s/trellis/internal/fixture/realcrds"
	"github.com/trellis-k8s/trellis/internal/object"
)

// ruleSchema is a schema with rules, compiled by both implementations.
type ruleSchema struct {
	name   string
	ours   *schema.Schema
	rules  *Rules
	theirs *structuralschema.Structural
	oracle *schemacel.Validator
	kind   [2]string // apiVersion, kind
}

// corpusRuleSchemas returns every n-th schema of the corpus with rules.
func corpusRuleSchemas(t testing.TB, n int) (all []ruleSchema) {
	t.Helper()
	corpus := realcrds.All(t)
	i := 0
	for _, name := range slices.Sorted(maps.Keys(corpus)) {
		crd := corpus[name]
		for _, v := range crd.Spec.Versions {
			if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
				continue
			}
			ours := parsed(t, v.Schema.OpenAPIV3Schema)
			rules := NewRules(ours)
			if rules.Empty() {
				continue
			}
			if i++; i%n != 0 {
				continue
			}
			theirs := realcrds.Structural(t, v.Schema.OpenAPIV3Schema)
			all = append(all, ruleSchema{name + " " + v.Name, ours, rules, theirs,
				schemacel.NewValidator(theirs, true, celconfig.PerCallLimit), [2]string{crd.Spec.Group + "/" + v.Name,
					crd.Spec.Names.Kind}})
		}
	}
	return all
}

// randomValue returns a value that is usually valid for n.
func randomValue(r *rand.Rand, n *schema.Node, depth int) any {
	if n == nil || r.IntN(60) == 0 {
		return []any{nil, "x", int64(1), 1.5, true, []any{}, object.Tree{}}[r.IntN(7)]
	}
	text := func() any {
		return []any{"", "a", "abc", "kube-x", "10.0.0.0/8", "10.0.0.1", "1h", "2024-01-02T03:04:05Z",
			"https://a.b:80/c?d=e", "A_B", "50%", "a.b.c"}[r.IntN(12)]
	}
	switch {
	case n.Checked().Enum != nil && r.IntN(10) > 0:
		var all []any
		c := object.NewCursor([]byte(n.Checks.Enum.Text))
		c.Elements(func(int) {
			if c.Kind() == '"' {
				all = append(all, c.Text())
			}
		})
		if len(all) > 0 {
			return all[r.IntN(len(all))]
		}
		return text()
	case n.IntOrString:
		return []any{int64(r.IntN(20)), "50%", "x"}[r.IntN(3)]
	}
	switch n.Type {
	case "object":
		t := object.Tree{}
		for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
			if slices.Contains(n.Required, name) || depth < 12 && r.IntN(3) > 0 {
				t[name] = randomValue(r, n.Properties[name], depth+1)
			}
		}
		if n.Additional != nil && depth < 12 {
			for i := range r.IntN(3) {
				t[fmt.Sprint("k", i)] = randomValue(r, n.Additional.Schema, depth+1)
			}
		}
		return t
	case "array":
		list := []any{}
		for range r.IntN(4) {
			list = append(list, randomValue(r, n.Items, depth+1))
		}
		return list
	case "integer":
		return int64(r.IntN(20) - 3)
	case "number":
		return []any{1.5, int64(2), -0.5}[r.IntN(3)]
	case "boolean":
		return r.IntN(2) == 0
	}
	switch n.Format {
	case "date-time":
		return "2024-01-02T03:04:05Z"
	case "duration":
		return "1h30m"
	case "byte":
		return "aGVsbG8="
	case "date":
		return "2024-01-02"
	}
	return text()
}

// change returns a copy of v with a few differences.
func change(r *rand.Rand, v any, n *schema.Node) any {
	switch v := v.(type) {
	case object.Tree:
		out := object.Tree{}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if r.IntN(25) == 0 {
				continue
			}
			var child *schema.Node
			if n != nil {
				child = n.Child(k)
			}
			out[k] = change(r, v[k], child)
		}
		return out
	case []any:
		out := []any{}
		for i := range v {
			var child *schema.Node
			if n != nil {
				child = n.Items
			}
			out = append(out, change(r, v[i], child))
		}
		if len(out) > 1 && r.IntN(6) == 0 {
			out[0], out[1] = out[1], out[0]
		}
		return out
	}
	if r.IntN(20) == 0 {
		return randomValue(r, n, 20)
	}
	return v
}

func errorTexts(errs field.ErrorList) (all []string) {
	for _, e := range errs {
		all = append(all, fmt.Sprintf("%s|%s|%s|%v", e.Field, e.Type, e.Detail, e.BadValue))
	}
	slices.Sort(all)
	return all
}

// compareEvaluation compares the evaluation of the rules in both implementations. Upstream iterates over maps in
// random order. Its first error and its cost can therefore vary, so compareEvaluation tries several times.
func compareEvaluation(t *testing.T, s *ruleSchema, what string, tree, old object.Tree) (failed int) {
	t.Helper()
	e := evaluation{ctx: context.Background(), budget: celconfig.RuntimeCELCostBudget}
	root := valuePair{value: tree}
	if old != nil {
		root.old, root.correlated = old, true
	}
	e.value(s.rules.tree(), &root)
	got := append(errorTexts(e.errs), fmt.Sprint("left of the budget: ", e.budget))
	var want []string
	for range 30 {
		var was any
		var options []schemacel.Option
		if old != nil {
			was = map[string]any(old)
			options = append(options, schemacel.WithRatcheting(common.NewCorrelatedObject(map[string]any(tree), was,
				&model.Structural{Structural: s.theirs})))
		}
		errs, budget := s.oracle.Validate(context.Background(), nil, s.theirs, map[string]any(tree), was,
			celconfig.RuntimeCELCostBudget, options...)
		if want = append(errorTexts(errs), fmt.Sprint("left of the budget: ", budget)); slices.Equal(got, want) {
			return len(errs)
		}
		if strings.Contains(strings.Join(want, ""), "internal error: runtime error") {
			return 0 // upstream panics on invalid values, but the server never evaluates rules on such values
		}
	}
	t.Fatalf("%s %s: errors\nours     %s\nupstream %s\nobject %s\nold %s", s.name, what,
		strings.Join(got, "\n         "), strings.Join(want, "\n         "), object.AppendJSON(nil,
			tree), object.AppendJSON(nil, old))
	return 0
}

// TestRulesAgainstUpstream checks that the rules of real schemas have upstream's results, costs and errors for
// random objects. VAL-043 VAL-049 VAL-069
// It checks the same for updates (VAL-033 VAL-041 VAL-140 VAL-141).
func TestRulesAgainstUpstream(t *testing.T) {
	n, rounds := 20, 6
	if realcrds.Whole() {
		n, rounds = 1, 60
	}
	failed, passed := 0, 0
	for _, s := range corpusRuleSchemas(t, n) {
		for seed := range rounds {
			r := rand.New(rand.NewPCG(uint64(seed), 17))
			tree, ok := randomValue(r, s.ours.Root, 0).(object.Tree)
			if !ok {
				continue
			}
			old, ok := change(r, tree, s.ours.Root).(object.Tree)
			if !ok {
				continue
			}
			f := compareEvaluation(t, &s, fmt.Sprint("create ", seed), tree, nil)
			f += compareEvaluation(t, &s, fmt.Sprint("update ", seed), tree, old)
			f += compareEvaluation(t, &s, fmt.Sprint("same ", seed), tree, object.Copy(tree))
			if f > 0 {
				failed++
			} else {
				passed++
			}
		}
	}
	if failed == 0 || passed == 0 {
		t.Errorf("%d objects broke rules, %d did not", failed, passed)
	}
}

// samples returns the objects of the corpus by apiVersion and kind.
func samples(t testing.TB) map[[2]string][]object.Tree {
	files, _ := filepath.Glob(outside.Path("corpus/samples/*/*.yaml"))
	all := map[[2]string][]object.Tree{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		tree, _, err := object.DecodeYAML(data)
		if err != nil {
			continue // the file is not an object, but a template, for example
		}
		key := [2]string{object.String(tree, "apiVersion"), object.String(tree, "kind")}
		all[key] = append(all[key], tree)
	}
	return all
}

// BenchmarkRules evaluates the rules of the corpus on its samples with both implementations.
func BenchmarkRules(b *testing.B) {
	all := samples(b)
	schemas := corpusRuleSchemas(b, 1)
	run := func(b *testing.B, f func(s *ruleSchema, t object.Tree)) {
		for i := range schemas { // compile outside the measurement
			for _, t := range all[schemas[i].kind] {
				f(&schemas[i], t)
			}
		}
		b.ReportAllocs()
		for b.Loop() {
			for i := range schemas {
				for _, t := range all[schemas[i].kind] {
					f(&schemas[i], t)
				}
			}
		}
	}
	b.Run("ours", func(b *testing.B) {
		run(b, func(s *ruleSchema, t object.Tree) { s.rules.Evaluate(b.Context(), t, nil, nil) })
	})
	b.Run("upstream", func(b *testing.B) {
		run(b, func(s *ruleSchema, t object.Tree) {
			s.oracle.Validate(b.Context(), nil, s.theirs, map[string]any(t), nil, celconfig.RuntimeCELCostBudget)
		})
	})
}

// parsed returns the schema that props describes.
func parsed(t testing.TB, props *apiextensionsv1.JSONSchemaProps) *schema.Schema {
	t.Helper()
	js, err := json.Marshal(props)
	if err != nil {
		t.Fatal(err)
	}
	s, err := schema.Parse(js, false)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
