package schema

import (
	"errors"
	"math"

	apicel "k8s.io/apiserver/pkg/cel"
)

// RuleNode is where a walk over a schema stands that checks its rules, as a write of a CRD does. Only
// what has rules at or below it has places: of all else they are nil, which every method accepts.
type RuleNode struct {
	node   *node
	seen   *node // the type of self in rules, if any are here or above
	err    error // why there is none
	scoped bool  // there are rules here or above
	often  *uint64
}

// CheckedRule is the verdict over one entry of x-kubernetes-validations.
type CheckedRule struct {
	Err, MessageErr   *apicel.Error // of rule and messageExpression
	HasMessage        bool          // messageExpression is given and compiles
	UsesOldSelf       bool
	Cost, MessageCost uint64 // estimates: for all values in one object, and for one message
}

var errHidden = errors.New("unable to convert structural schema to CEL declarations")

// RuleChecker compiles rules as a write of a CRD does. It is for one goroutine.
type RuleChecker struct{ compiler *ruleCompiler }

// NewRuleChecker is for the rules in the schemas of one CRD. An expression for which stored is
// true may use what new ones may not.
func NewRuleChecker(schemas [][]byte, stored func(expr string, isMessage bool) bool) *RuleChecker {
	c := newRuleCompiler(schemas...)
	c.estimator = newEstimator
	c.language = func(expr string, isMessage bool) *language {
		if stored(expr, isMessage) {
			return storedLanguage()
		}
		return newLanguage()
	}
	return &RuleChecker{c}
}

// RootRuleNode is where a walk begins.
func (s *Schema) RootRuleNode() *RuleNode {
	if !s.root.hasRules() {
		return nil
	}
	once := uint64(1)
	p := &RuleNode{node: s.root, often: &once, scoped: s.root.rules != ""}
	switch {
	case p.scoped && s.root.hidden():
		p.err = errHidden
	case p.scoped:
		p.seen = s.root.asResource()
	}
	return p
}

// Property is the place of the property name.
func (p *RuleNode) Property(name string) *RuleNode {
	if p == nil || !p.node.properties[name].hasRules() {
		return nil
	}
	var seen *node
	if escaped, ok := apicel.Escape(name); ok && p.seen != nil {
		seen = p.seen.field(escaped)
	}
	c := p.below(p.node.properties[name], seen)
	if c.scoped && c.seen == nil && c.err == nil { // the type of p leaves it out
		c.convert()
	}
	return c
}

// Items is the place of the items of a list.
func (p *RuleNode) Items() *RuleNode {
	if p == nil || !p.node.items.hasRules() {
		return nil
	}
	return p.below(p.node.items, p.seen.element())
}

// Additional is the place of the values of a map.
func (p *RuleNode) Additional() *RuleNode {
	if p == nil || p.node.additional == nil || !p.node.additional.schema.hasRules() {
		return nil
	}
	return p.below(p.node.additional.schema, p.seen.element())
}

// below is the place of n, which expressions at p or above see as seen.
func (p *RuleNode) below(n, seen *node) *RuleNode {
	c := &RuleNode{node: n, seen: seen, err: p.err, scoped: p.scoped}
	if most := p.node.fanOut(); p.often != nil && most != nil {
		often := multiply(*p.often, *most)
		c.often = &often
	}
	if !p.scoped && n.rules != "" {
		c.scoped = true
		c.convert()
	}
	return c
}

func (p *RuleNode) convert() {
	if p.seen = visible(p.node); p.seen == nil {
		p.err = errHidden
	}
}

// fanOut is how many values one value of n can hold of each kind; nil is any number.
func (n *node) fanOut() *uint64 {
	most, limit := uint64(1), (*int64)(nil)
	switch {
	case n.typ == "array":
		limit = n.mostItems()
	case n.typ == "object" && n.additional != nil:
		limit = n.mostProperties()
	default:
		return &most
	}
	if limit == nil {
		return nil
	}
	most = uint64(max(0, *limit))
	return &most
}

// Check compiles the rules at p and estimates their cost. The error is that of the type that they stand on.
func (c *RuleChecker) Check(p *RuleNode) ([]CheckedRule, error) {
	if p == nil || p.node.rules == "" {
		return nil, nil
	}
	if p.err != nil {
		return nil, errNoTypeInfo{p.err}
	}
	rules, err := c.compiler.all(p.node, p.seen)
	if err != nil {
		return nil, err
	}
	often := p.often
	if often == nil {
		most := p.seen.maxCardinality()
		often = &most
	}
	out := make([]CheckedRule, len(rules))
	for i, r := range rules {
		out[i] = CheckedRule{r.err, r.messageErr, r.err == nil && r.messageErr == nil && r.messageExpression != "", r.usesOldSelf, multiply(r.cost, *often), r.messageCost}
	}
	return out, nil
}

type errNoTypeInfo struct{ error }

func (e errNoTypeInfo) Error() string {
	return "internal error: failed to construct type information for x-kubernetes-validations rules: " + e.error.Error()
}

// multiply stops at the largest number there is.
func multiply(a, b uint64) uint64 {
	if a != 0 && math.MaxUint64/a < b {
		return math.MaxUint64
	}
	return a * b
}
