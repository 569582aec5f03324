package cel

import (
	"errors"
	"math"

	apicel "k8s.io/apiserver/pkg/cel"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
)

// RuleNode is a node of a schema during the validation of the rules in a CRD. It is nil if there are no rules at or
// below the node. Every method accepts a nil receiver.
type RuleNode struct {
	node     *schema.Node
	celNode  *schema.Node // the node as rules see it, if there are rules at or above the node
	err      error        // reason why celNode is nil
	scoped   bool         // there are rules at or above the node
	maxCount *uint64      // maximum number of values in one object; nil means unbounded
}

// CheckedRule is the result of checking one entry of x-kubernetes-validations.
type CheckedRule struct {
	Rule              schema.Rule
	Err, MessageErr   *apicel.Error // errors of rule and messageExpression
	HasMessage        bool          // messageExpression is set and compiles
	UsesOldSelf       bool
	Cost, MessageCost uint64 // estimates: Cost for all values in one object, MessageCost for one message
}

var errHidden = errors.New("unable to convert structural schema to CEL declarations")

// RuleChecker compiles the rules of a CRD that is being written. It must be used by one goroutine only.
type RuleChecker struct{ compiler *ruleCompiler }

// NewRuleChecker returns a checker for the rules in the schemas of one CRD. The function stored reports whether an
// expression is already stored. Stored expressions may use functions that are not allowed in new expressions.
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

// NewRuleNode returns the root node for a walk over the rules of a schema.
func NewRuleNode(root *schema.Node) *RuleNode {
	if !root.HasRules() {
		return nil
	}
	one := uint64(1)
	p := &RuleNode{node: root, maxCount: &one, scoped: root.Rules != ""}
	switch {
	case p.scoped && hiddenFromCEL(root):
		p.err = errHidden
	case p.scoped:
		p.celNode = asResource(root)
	}
	return p
}

// Property returns the node of the property with the given name.
func (p *RuleNode) Property(name string) *RuleNode {
	if p == nil || !p.node.Properties[name].HasRules() {
		return nil
	}
	var celNode *schema.Node
	if escaped, ok := apicel.Escape(name); ok && p.celNode != nil {
		celNode = fieldNode(p.celNode, escaped)
	}
	c := p.below(p.node.Properties[name], celNode)
	if c.scoped && c.celNode == nil && c.err == nil { // the property is hidden from rules above it
		c.convert()
	}
	return c
}

// Items returns the node of the items of a list.
func (p *RuleNode) Items() *RuleNode {
	if p == nil || !p.node.Items.HasRules() {
		return nil
	}
	return p.below(p.node.Items, elementNode(p.celNode))
}

// Additional returns the node of the values of a map.
func (p *RuleNode) Additional() *RuleNode {
	if p == nil || p.node.Additional == nil || !p.node.Additional.Schema.HasRules() {
		return nil
	}
	return p.below(p.node.Additional.Schema, elementNode(p.celNode))
}

// below returns a RuleNode for n, which is a child of the node of p. celNode is n as rules at p or above see it.
func (p *RuleNode) below(n, celNode *schema.Node) *RuleNode {
	c := &RuleNode{node: n, celNode: celNode, err: p.err, scoped: p.scoped}
	if most := fanOut(p.node); p.maxCount != nil && most != nil {
		count := multiply(*p.maxCount, *most)
		c.maxCount = &count
	}
	if !p.scoped && n.Rules != "" {
		c.scoped = true
		c.convert()
	}
	return c
}

func (p *RuleNode) convert() {
	if p.celNode = celNodeOf(p.node); p.celNode == nil {
		p.err = errHidden
	}
}

// fanOut returns the maximum number of values that one child node can have in one value of n. nil means unbounded.
func fanOut(n *schema.Node) *uint64 {
	most, limit := uint64(1), (*int64)(nil)
	switch {
	case n.Type == "array":
		limit = effectiveMaxItems(n)
	case n.Type == "object" && n.Additional != nil:
		limit = effectiveMaxProperties(n)
	default:
		return &most
	}
	if limit == nil {
		return nil
	}
	most = uint64(max(0, *limit))
	return &most
}

// Check compiles the rules at p and estimates their cost. It returns an error if the type of p cannot be declared.
func (c *RuleChecker) Check(p *RuleNode) ([]CheckedRule, error) {
	if p == nil || p.node.Rules == "" {
		return nil, nil
	}
	if p.err != nil {
		return nil, errNoTypeInfo{p.err}
	}
	rules, err := c.compiler.all(p.node, p.celNode)
	if err != nil {
		return nil, err
	}
	count := p.maxCount
	if count == nil {
		most := maxCardinality(p.celNode)
		count = &most
	}
	out := make([]CheckedRule, len(rules))
	for i, r := range rules {
		out[i] = CheckedRule{
			Rule: r.Rule, Err: r.err, MessageErr: r.messageErr,
			HasMessage:  r.err == nil && r.messageErr == nil && r.MessageExpression != "",
			UsesOldSelf: r.usesOldSelf, Cost: multiply(r.cost, *count), MessageCost: r.messageCost,
		}
	}
	return out, nil
}

type errNoTypeInfo struct{ error }

func (e errNoTypeInfo) Error() string {
	return "internal error: failed to construct type information for x-kubernetes-validations rules: " + e.error.Error()
}

// multiply returns a*b, or math.MaxUint64 on overflow.
func multiply(a, b uint64) uint64 {
	if a != 0 && math.MaxUint64/a < b {
		return math.MaxUint64
	}
	return a * b
}
