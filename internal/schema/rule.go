package schema

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apicel "k8s.io/apiserver/pkg/cel"

	"github.com/trellis-k8s/trellis/internal/object"
)

// rule is one entry of x-kubernetes-validations.
type rule struct {
	rule, message, messageExpression string
	reason, fieldPath                string
	optionalOldSelf                  bool
}

// readRules reads the JSON of x-kubernetes-validations.
func readRules(js string) (all []rule) {
	c := object.NewCursor([]byte(js))
	c.Elements(func(int) {
		var r rule
		c.Members(func(key string) {
			switch key {
			case "rule":
				r.rule = c.Text()
			case "message":
				r.message = c.Text()
			case "messageExpression":
				r.messageExpression = c.Text()
			case "reason":
				r.reason = c.Text()
			case "fieldPath":
				r.fieldPath = c.Text()
			case "optionalOldSelf":
				r.optionalOldSelf = c.Bool()
			}
		})
		all = append(all, r)
	})
	return all
}

// compiledRule is a rule that can be evaluated: program if there is no err, and message if there is a
// messageExpression and no messageErr. Of a rule without text nothing is set.
type compiledRule struct {
	rule
	program     cel.Program // to a bool
	message     cel.Program // to a string
	usesOldSelf bool
	path        string // fieldPath, normalized; "" where there is none
	err         *apicel.Error
	messageErr  *apicel.Error

	cost, messageCost uint64 // what they can cost at most; estimated on request only
}

// ruleTree is the part of the tree of nodes that has rules at or below it, so that evaluation
// sees nothing else. What is below a value of unknown type is left out, as upstream does.
type ruleTree struct {
	node       *node // what the schema says
	seen       *node // node as rules see it: its type; nil where they see nothing
	properties map[string]*ruleTree
	items      *ruleTree
	additional *ruleTree

	once  sync.Once
	rules []compiledRule
	err   error
}

// rules is the tree of the rules of s, made on first use; nil if there are none.
func (s *Schema) rules() *ruleTree {
	s.rulesOnce.Do(func() {
		if s.root != nil {
			s.ruleTree = newRuleTree(s.root, s.root.asResource())
		}
	})
	return s.ruleTree
}

// newRuleTree is nil if n, which rules see as seen, has no rules at or below it.
func newRuleTree(n, seen *node) *ruleTree {
	if n == nil || !n.anyRules {
		return nil
	}
	t := &ruleTree{node: n, seen: seen}
	t.items = newRuleTree(n.items, seen.element())
	if n.additional != nil {
		t.additional = newRuleTree(n.additional.schema, seen.element())
	}
	for name, child := range n.properties {
		if !child.anyRules {
			continue
		}
		p := seen.property(name, child)
		if p == nil {
			continue
		}
		if t.properties == nil {
			t.properties = map[string]*ruleTree{}
		}
		t.properties[name] = newRuleTree(child, p)
	}
	return t
}

// property is how rules see the property child of n; nil if they do not. Of a property that no
// expression can name its own rules hold nevertheless.
func (n *node) property(name string, child *node) *node {
	if n == nil || child.hidden() {
		return nil
	}
	if escaped, ok := apicel.Escape(name); ok {
		return n.field(escaped)
	}
	return child.asSeen()
}

// compiled are the rules at t itself, compiled on first use as what is stored already. The error is
// that of the type: with it there are no rules.
func (t *ruleTree) compiled() ([]compiledRule, error) {
	t.once.Do(func() {
		c := ruleCompiler{language: func(string, bool) *language { return storedLanguage() }}
		t.rules, t.err = c.all(t.node, t.seen)
	})
	return t.rules, t.err
}

var errNoType = errors.New("failed to convert to declType for CEL validation rules")

// ruleCompiler compiles the rules of one node after the other.
type ruleCompiler struct {
	language  func(expr string, isMessage bool) *language              // that an expression is written in
	estimator func(self *node, checked *ast.AST) checker.CostEstimator // nil: nobody asks for costs

	seen     *node
	name     string // of the type of self
	checkers map[checkerKey]*checker.Env
}

type checkerKey struct {
	language *language
	optional bool // oldSelf is
}

// all compiles the rules of n, the values of which have the type of seen.
func (c *ruleCompiler) all(n, seen *node) ([]compiledRule, error) {
	rules := readRules(n.rules)
	if len(rules) > 0 && seen == nil {
		return nil, errNoType
	}
	// The name must not be known to who writes a rule, or the rule could construct values of that type.
	h := fnv.New32a()
	_, _ = h.Write([]byte(n.rules))
	c.seen, c.name, c.checkers = seen, fmt.Sprintf("selfType%d", h.Sum32()), map[checkerKey]*checker.Env{}
	out := make([]compiledRule, len(rules))
	for i, r := range rules {
		out[i] = compiledRule{rule: r}
		c.compile(&out[i])
		if r.fieldPath != "" {
			out[i].path = normalizedFieldPath(r.fieldPath, n)
		}
	}
	return out, nil
}

func (c *ruleCompiler) compile(r *compiledRule) {
	if strings.TrimSpace(r.rule.rule) == "" {
		return
	}
	x := expression{text: r.rule.rule, optionalOldSelf: r.optionalOldSelf, want: types.BoolType, article: "cel expression must evaluate to a bool"}
	r.err = c.expression(&x, c.language(x.text, false))
	r.program, r.usesOldSelf, r.cost = x.program, x.usesOldSelf, x.cost
	if r.err != nil || r.messageExpression == "" {
		return
	}
	m := expression{text: r.messageExpression, prefix: "messageExpression ", optionalOldSelf: r.optionalOldSelf, want: types.StringType, article: "messageExpression must evaluate to a string"}
	r.messageErr = c.expression(&m, c.language(m.text, true))
	r.message, r.messageCost = m.program, m.cost
}

type expression struct {
	text, prefix    string
	optionalOldSelf bool
	want            *types.Type
	article         string // what to say of another type

	program     cel.Program
	usesOldSelf bool
	cost        uint64
}

func (c *ruleCompiler) expression(x *expression, l *language) *apicel.Error {
	fail := func(format string, args ...any) *apicel.Error {
		return &apicel.Error{Type: apicel.ErrorTypeInvalid, Detail: fmt.Sprintf(format, args...)}
	}
	chk, err := c.checker(l, x.optionalOldSelf)
	if err != nil {
		return fail("%scompilation failed: %v", x.prefix, err)
	}
	checked, issues := l.check(x.text, chk)
	if issues.Err() != nil {
		return fail("%scompilation failed: %s", x.prefix, issues)
	}
	if checked.OutputType() != x.want {
		return fail("%s", x.article)
	}
	for _, ref := range checked.NativeRep().ReferenceMap() {
		x.usesOldSelf = x.usesOldSelf || ref.Name == oldSelfVar
	}
	program, err := l.env.Program(checked, cel.InterruptCheckFrequency(celconfig.CheckFrequency))
	if err != nil {
		return fail("%sinstantiation failed: %v", cmp.Or(x.prefix, "program "), err)
	}
	if c.estimator != nil {
		cost, err := l.env.EstimateCost(checked, c.estimator(c.seen, checked.NativeRep()))
		if err != nil {
			return fail("cost estimation failed: %v", err)
		}
		x.cost = cost.Max
	}
	x.program = program
	return nil
}

func (c *ruleCompiler) checker(l *language, optional bool) (*checker.Env, error) {
	key := checkerKey{l, optional}
	if chk := c.checkers[key]; chk != nil {
		return chk, nil
	}
	s, err := newScope(l.env.CELTypeProvider())
	if err != nil {
		return nil, err
	}
	chk, err := l.checkerFor(s, s.typeOf(c.seen, c.name), optional)
	if err == nil {
		c.checkers[key] = chk
	}
	return chk, err
}
