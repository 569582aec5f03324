package cel

import (
	"maps"
	"regexp"
	"slices"
	"testing"

	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	upstreamcel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apicel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/fixture/realcrds"
)

// upstreamEnv returns the environment in which upstream v1.37 compiles rules.
func upstreamEnv() *environment.EnvSet {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
}

// eachNodeWithRules calls f for each node with rules at and below n. seen is n as rules see it. s and decl are
// upstream's schema and type for n.
func eachNodeWithRules(n, seen *schema.Node, s *structuralschema.Structural, decl *apicel.DeclType,
	f func(n, seen *schema.Node, s *structuralschema.Structural, decl *apicel.DeclType)) {
	if n == nil || !n.HasRules() {
		return
	}
	if n.Rules != "" {
		f(n, seen, s, decl)
	}
	var elem *apicel.DeclType
	if decl != nil {
		elem = decl.ElemType
	}
	if n.Items != nil {
		eachNodeWithRules(n.Items, elementNode(seen), s.Items, elem, f)
	}
	if n.Additional != nil && n.Additional.Schema != nil {
		eachNodeWithRules(n.Additional.Schema, elementNode(seen), s.AdditionalProperties.Structural, elem, f)
	}
	for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
		p := s.Properties[name]
		var of *apicel.DeclType
		if escaped, ok := apicel.Escape(name); !ok {
			of = model.SchemaDeclType(&p, p.XEmbeddedResource)
		} else if decl != nil && decl.Fields[escaped] != nil {
			of = decl.Fields[escaped].Type
		}
		eachNodeWithRules(n.Properties[name], propertyNode(seen, name, n.Properties[name]), &p, of, f)
	}
}

// lowerCost matches expressions whose cost estimate may be lower than upstream's.
var lowerCost = regexp.MustCompile(`string\(|filter\(`)

var selfType = regexp.MustCompile(`selfType\d+`)

// compareRules compiles the rules of one node with both implementations.
func compareRules(t *testing.T, what string, c *ruleCompiler, n, seen *schema.Node, s *structuralschema.Structural,
	decl *apicel.DeclType) (compiled int) {
	t.Helper()
	c.estimator = newEstimator
	ours, _ := c.all(n, seen)
	c.estimator = func(self *schema.Node, _ *ast.AST) checker.CostEstimator {
		return &library.CostEstimator{SizeEstimator: sizes{self: self}}
	}
	got, gotErr := c.all(n, seen)
	want, wantErr := upstreamcel.Compile(s, decl, celconfig.PerCallLimit, upstreamEnv(),
		upstreamcel.NewExpressionsEnvLoader())
	if (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error() ||
		len(got) != len(want) {
		t.Fatalf("%s: %d rules, %v; upstream %d, %v", what, len(got), gotErr, len(want), wantErr)
	}
	for i := range got {
		g, w := &got[i], &want[i]
		same := func(name string, a, b any) {
			if a != b {
				t.Errorf("%s: %s of %q\nours     %v\nupstream %v", what, name, g.Rule.Rule, a, b)
			}
		}
		text := func(err *apicel.Error) string {
			if err == nil {
				return ""
			}
			return selfType.ReplaceAllString(string(err.Type)+err.Detail, "selfType")
		}
		same("error", text(g.err), text(w.Error))
		same("message error", text(g.messageErr), text(w.MessageExpressionError))
		same("oldSelf", g.usesOldSelf, w.UsesOldSelf)
		same("cost", g.cost, w.MaxCost)
		if o := &ours[i]; o.cost > g.cost || o.messageCost > g.messageCost || o.cost < g.cost &&
			!lowerCost.MatchString(g.Rule.Rule) || o.messageCost < g.messageCost &&
			!lowerCost.MatchString(g.MessageExpression) {
			t.Errorf("%s: %q %q costs %d and %d, upstream %d and %d", what, g.Rule.Rule, g.MessageExpression, o.cost,
				o.messageCost, g.cost, g.messageCost)
		}
		same("message cost", g.messageCost, w.MessageExpressionMaxCost)
		if w.Program != nil {
			same("cardinality", maxCardinality(seen), w.MaxCardinality)
			same("path", g.path, w.NormalizedRuleFieldPath)
			compiled++
		}
	}
	return compiled
}

// TestRulesOfCorpusAgainstUpstream checks that the rules of every real CRD have upstream's compile results and
// cost estimates. VAL-048, VAL-150
func TestRulesOfCorpusAgainstUpstream(t *testing.T) {
	programs, n := 0, 0
	all := realcrds.All(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, v := range all[name].Spec.Versions {
			if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
				continue
			}
			s := parsed(t, v.Schema.OpenAPIV3Schema)
			if !s.Root.HasRules() {
				continue
			}
			if n++; n%15 != 0 && !realcrds.Whole() {
				continue
			}
			theirs := realcrds.Structural(t, v.Schema.OpenAPIV3Schema)
			c := newRuleCompiler()
			c.language = func(string, bool) *language { return newLanguage() }
			eachNodeWithRules(s.Root, asResource(s.Root), theirs, model.SchemaDeclType(theirs, true),
				func(n, seen *schema.Node, s *structuralschema.Structural, decl *apicel.DeclType) {
					programs += compareRules(t, name+" "+v.Name, c, n, seen, s, decl)
				})
			if t.Failed() {
				return
			}
		}
	}
	if programs < 50 {
		t.Errorf("only %d rules compiled", programs)
	}
	t.Logf("%d rules compiled", programs)
}
