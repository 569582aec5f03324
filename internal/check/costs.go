package check

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/crd/cel"
	"github.com/trellis-k8s/trellis/internal/crd/crdvalidation"
	"github.com/trellis-k8s/trellis/internal/object"
)

const (
	// reportedShare defines which rules appear in the text output: those that cost at least a tenth of the budget.
	reportedShare = 10
	// maxTries is the maximum number of missing limits that are tried to find the advice for one rule.
	maxTries = 50
)

// Estimate is an estimated cost. The maximum uint64 means unbounded.
type Estimate uint64

const unbounded Estimate = math.MaxUint64

// String implements fmt.Stringer.
func (e Estimate) String() string {
	if e == unbounded {
		return "unbounded"
	}
	return strconv.FormatUint(uint64(e), 10)
}

// MarshalJSON implements json.Marshaler. It returns a number or "unbounded".
func (e Estimate) MarshalJSON() ([]byte, error) {
	if e == unbounded {
		return []byte(`"unbounded"`), nil
	}
	return []byte(e.String()), nil
}

// Rule is a CEL rule of a CRD with a server's estimate of its maximum cost.
type Rule struct {
	File   string   `json:"file"`
	Line   int      `json:"line"`
	Column int      `json:"column"`
	Path   string   `json:"path"`
	Rule   string   `json:"rule"`
	Cost   Estimate `json:"cost"`   // for all values in one object
	Budget Estimate `json:"budget"` // limit of Cost
	// Advice is the missing limit that would lower a high cost most.
	Advice string `json:"advice,omitempty"`
}

// costs reports the rules of a CRD, most expensive first.
func (c *checker) costs(d *document) {
	var found []Rule
	for _, v := range slices.Sorted(maps.Keys(versionsOf(d.tree))) {
		version := versionsOf(d.tree)[v]
		root := schemaOf(version.tree)
		if root == nil {
			continue
		}
		s, err := compile(root)
		if err != nil {
			continue // the schema is invalid
		}
		w := costEstimation{root: root, rules: newRules(root), path: version.path + ".schema.openAPIV3Schema"}
		w.walk(cel.NewRuleNode(s.Schema.Root), root, nil)
		for _, r := range w.found {
			r.File = d.file
			r.Line, r.Column = d.position(r.Path)
			found = append(found, r)
		}
	}
	slices.SortStableFunc(found, func(a, b Rule) int { return cmp.Compare(b.Cost, a.Cost) })
	c.report.Rules = append(c.report.Rules, found...)
}

func compile(root object.Tree) (*crd.Compiled, error) {
	return crd.Compile(object.AppendJSON(nil, root), false)
}

func newRules(root object.Tree) *cel.RuleChecker {
	return cel.NewRuleChecker([][]byte{object.AppendJSON(nil, root)}, func(string, bool) bool { return false })
}

// costEstimation estimates the costs of the rules of one schema.
type costEstimation struct {
	root  object.Tree
	rules *cel.RuleChecker // checks rules against the original root
	path  string
	found []Rule
}

// schemaStep is one step into a schema: a keyword, followed by a property name for the keyword properties.
type schemaStep struct{ keyword, name string }

func (s schemaStep) String() string {
	if s.name != "" {
		return "." + s.keyword + "[" + s.name + "]"
	}
	return "." + s.keyword
}

func (s schemaStep) schema(t object.Tree) object.Tree {
	below, _ := t[s.keyword].(object.Tree)
	if s.name != "" {
		below, _ = below[s.name].(object.Tree)
	}
	return below
}

func (s schemaStep) ruleNode(p *cel.RuleNode) *cel.RuleNode {
	switch s.keyword {
	case "items":
		return p.Items()
	case "additionalProperties":
		return p.Additional()
	}
	return p.Property(s.name)
}

// steps returns the steps from a schema to the schemas directly below it.
func steps(t object.Tree) (all []schemaStep) {
	properties, _ := t["properties"].(object.Tree)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		all = append(all, schemaStep{"properties", name})
	}
	return append(all, schemaStep{"items", ""}, schemaStep{"additionalProperties", ""})
}

func (w *costEstimation) walk(p *cel.RuleNode, t object.Tree, at []schemaStep) {
	if p == nil || t == nil {
		return
	}
	checked, err := w.rules.Check(p)
	for i, r := range list(t, "x-kubernetes-validations") {
		if err != nil || i >= len(checked) || checked[i].Err != nil {
			continue // the rule is invalid
		}
		found := Rule{
			Path: w.pathOf(at) + ".x-kubernetes-validations[" + strconv.Itoa(i) + "].rule",
			Rule: object.String(r, "rule"), Cost: Estimate(checked[i].Cost), Budget: crdvalidation.MaxRuleCost,
		}
		if found.Cost >= found.Budget/reportedShare {
			found.Advice = w.advice(at, i, found.Cost)
		}
		w.found = append(w.found, found)
	}
	for _, s := range steps(t) {
		w.walk(s.ruleNode(p), s.schema(t), append(at[:len(at):len(at)], s))
	}
}

func (w *costEstimation) pathOf(at []schemaStep) string {
	path := w.path
	for _, s := range at {
		path += s.String()
	}
	return path
}

// limits maps each type to the keyword that limits the size of its values, and to a limit to try.
var limits = map[string]struct {
	keyword string
	value   int64
}{"array": {"maxItems", 10}, "string": {"maxLength", 63}, "object": {"maxProperties", 10}}

// advice tries each missing limit above and below a rule. It returns the limit that lowers the cost most.
func (w *costEstimation) advice(at []schemaStep, rule int, cost Estimate) string {
	best, tries := "", 0
	try := func(t object.Tree, path string) {
		limit, ok := limits[object.String(t, "type")]
		if !ok || t[limit.keyword] != nil || t["enum"] != nil || t["format"] != nil || t["properties"] != nil ||
			tries >= maxTries {
			return
		}
		tries++
		t[limit.keyword] = limit.value
		if lower, ok := w.cost(at); ok && lower < cost {
			cost = lower
			best = fmt.Sprintf("%s.%s: %d would lower the cost to %v", path, limit.keyword, limit.value, lower)
		}
		delete(t, limit.keyword)
	}
	own := w.root
	for _, s := range at {
		own = s.schema(own)
	}
	all, _ := own["x-kubernetes-validations"].([]any)
	own["x-kubernetes-validations"] = all[rule : rule+1 : rule+1] // compile only this rule
	defer func() { own["x-kubernetes-validations"] = all }()
	t := w.root
	for i := range at {
		try(t, w.pathOf(at[:i]))
		t = at[i].schema(t)
	}
	below(t, w.pathOf(at), try)
	return best
}

// below calls f for a schema and all schemas below it.
func below(t object.Tree, path string, f func(object.Tree, string)) {
	if t == nil {
		return
	}
	f(t, path)
	for _, s := range steps(t) {
		below(s.schema(t), path+s.String(), f)
	}
}

// cost estimates the cost of the first rule at a path of the current schema, which may contain a limit to try.
func (w *costEstimation) cost(at []schemaStep) (Estimate, bool) {
	s, err := compile(w.root)
	if err != nil {
		return 0, false
	}
	p := cel.NewRuleNode(s.Schema.Root)
	for _, step := range at {
		p = step.ruleNode(p)
	}
	checked, err := newRules(w.root).Check(p)
	if err != nil || len(checked) == 0 || checked[0].Err != nil {
		return 0, false
	}
	return Estimate(checked[0].Cost), true
}

func (r *Rule) writeText(b *strings.Builder) {
	if r.Cost < r.Budget/reportedShare {
		return
	}
	costs := fmt.Sprintf("costs at most %v, %d %% of the limit", r.Cost, r.Cost/(r.Budget/100))
	switch {
	case r.Cost == unbounded:
		costs = "has an unbounded cost"
	case r.Cost >= 10*r.Budget:
		costs = fmt.Sprintf("costs at most %v, %d times the limit", r.Cost, r.Cost/r.Budget)
	}
	fmt.Fprintf(b, "%s:%d:%d: rule: %s: %q %s", r.File, r.Line, r.Column, r.Path, r.Rule, costs)
	if r.Advice != "" {
		b.WriteString("; " + r.Advice)
	}
	b.WriteByte('\n')
}
