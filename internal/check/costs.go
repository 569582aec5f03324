package check

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/trellis-k8s/trellis/internal/crd/cel"
	"github.com/trellis-k8s/trellis/internal/crd/crdvalidation"
	"github.com/trellis-k8s/trellis/internal/crd/schema"
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

// schemas checks the schemas of a CRD and reports its rules, most expensive first.
func (c *checker) schemas(d *document) {
	var found []Rule
	versions := versionsOf(d.tree)
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		root := versions[name].root
		root.visit(func(p *place) {
			if typ := p.WrittenType(); typ != "" && p.IntOrString {
				c.add(d, Warning, "Type", p.path+".type",
					"x-kubernetes-int-or-string allows integers and strings, but defaults and values in server-side "+
						"apply must be of type "+typ)
			}
		})
		found = append(found, costs(d, root)...)
	}
	slices.SortStableFunc(found, func(a, b Rule) int { return cmp.Compare(b.Cost, a.Cost) })
	c.report.Rules = append(c.report.Rules, found...)
}

// costs returns the valid rules of one schema.
func costs(d *document, root *place) (found []Rule) {
	if root.Node == nil {
		return nil
	}
	js := [][]byte{root.AppendJSON(nil)}
	checker := cel.NewRuleChecker(js, func(string, bool) bool { return false })
	root.visit(func(p *place) {
		rules := p.Rules.All()
		checked, err := checker.Check(p.rules())
		if err != nil {
			return
		}
		for i, r := range checked {
			if r.Err != nil {
				continue
			}
			path := fmt.Sprintf("%s.x-kubernetes-validations[%d].rule", p.path, i)
			rule := Rule{File: d.file, Path: path, Rule: rules[i].Rule, Cost: Estimate(r.Cost),
				Budget: crdvalidation.MaxRuleCost}
			rule.Line, rule.Column = d.position(path)
			if rule.Cost >= rule.Budget/reportedShare {
				rule.Advice = p.advice(checker, i, rule.Cost)
			}
			found = append(found, rule)
		}
	})
	return found
}

// place is a schema in the schema of a version.
type place struct {
	*schema.Node
	path   string
	parent *place // nil at the root
	// step returns the RuleNode of the place from that of the parent.
	step func(*cel.RuleNode) *cel.RuleNode
}

// visit calls f for p and all places below it, unless p has no schema.
func (p *place) visit(f func(*place)) {
	if p.Node == nil {
		return
	}
	f(p)
	for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
		step := func(r *cel.RuleNode) *cel.RuleNode { return r.Property(name) }
		(&place{p.Properties[name], p.path + ".properties[" + name + "]", p, step}).visit(f)
	}
	(&place{p.Items, p.path + ".items", p, (*cel.RuleNode).Items}).visit(f)
	if p.Additional != nil {
		(&place{p.Additional.Schema, p.path + ".additionalProperties", p, (*cel.RuleNode).Additional}).visit(f)
	}
}

func (p *place) rules() *cel.RuleNode {
	if p.parent == nil {
		return cel.NewRuleNode(p.Node)
	}
	return p.step(p.parent.rules())
}

// above calls f for p, which may be nil, and all places above it, from the root.
func (p *place) above(f func(*place)) {
	if p != nil {
		p.parent.above(f)
		f(p)
	}
}

// limits maps each type to the keyword that limits the size of its values, and to a limit to try.
var limits = map[string]struct {
	keyword string
	field   func(*schema.Node) **int64
	value   int64
}{
	"array":  {"maxItems", func(n *schema.Node) **int64 { return &n.MaxItems }, 10},
	"string": {"maxLength", func(n *schema.Node) **int64 { return &n.MaxLength }, 63},
	"object": {"maxProperties", func(n *schema.Node) **int64 { return &n.MaxProperties }, 10},
}

// limiting contains keywords that limit the size of a value in other ways.
var limiting = schema.SetOf("enum", "format", "properties")

// advice tries each missing limit above and below a rule of p. It returns the limit that lowers the cost most. The
// nodes are modified during the call.
func (p *place) advice(checker *cel.RuleChecker, rule int, cost Estimate) string {
	best, tries := "", 0
	try := func(at *place) {
		limit, ok := limits[at.WrittenType()]
		if !ok || at.Set&limiting != 0 || *limit.field(at.Node) != nil || tries >= maxTries {
			return
		}
		tries++
		*limit.field(at.Node) = &limit.value
		checked, err := checker.Check(p.rules())
		if err == nil && checked[0].Err == nil && Estimate(checked[0].Cost) < cost {
			cost = Estimate(checked[0].Cost)
			best = fmt.Sprintf("%s.%s: %d would lower the cost to %v", at.path, limit.keyword, limit.value, cost)
		}
		*limit.field(at.Node) = nil
	}
	all := p.Rules
	p.Rules = schema.Rules("[" + elements(schema.JSON(all))[rule] + "]") // check only this rule
	defer func() { p.Rules = all }()
	p.parent.above(try)
	p.visit(try)
	return best
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
