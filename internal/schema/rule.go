package schema

import (
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
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

	messageFails *sync.Once // guards that this is logged; there if message is

	cost, messageCost uint64 // what they can cost at most; estimated on request only
}

// ruleTree is the part of the tree of nodes that has rules at or below it, so that evaluation
// sees nothing else. What is below a value of unknown type is left out, as upstream does.
type ruleTree struct {
	node       *node // what the schema says
	seen       *node // node as rules see it: its type; nil where they see nothing
	properties map[string]*ruleTree
	names      []string // of properties, sorted
	items      *ruleTree
	additional *ruleTree

	compiler *treeCompiler
	once     sync.Once
	rules    []compiledRule
	err      error
}

// treeCompiler is what all of one tree have in common.
type treeCompiler struct {
	sync.Mutex
	*ruleCompiler
}

// newTreeCompiler compiles rules as stored ones.
func newTreeCompiler(root *node) *treeCompiler {
	c := newRuleCompiler([]byte(root.rules))
	c.language = func(string, bool) *language { return storedLanguage() }
	return &treeCompiler{ruleCompiler: c}
}

// rules is the tree of the rules of s, made on first use; nil if there are none.
func (s *Schema) rules() *ruleTree {
	s.rulesOnce.Do(func() {
		if s.root != nil && !s.loose {
			s.ruleTree = newRuleTree(s.root, s.root.asResource(), newTreeCompiler(s.root))
		}
	})
	return s.ruleTree
}

// newRuleTree is nil if n, which rules see as seen, has no rules at or below it that are ever run.
func newRuleTree(n, seen *node, c *treeCompiler) *ruleTree {
	if n == nil || !n.anyRules {
		return nil
	}
	t := &ruleTree{node: n, seen: seen, compiler: c}
	t.items = newRuleTree(n.items, seen.element(), c)
	if n.additional != nil {
		t.additional = newRuleTree(n.additional.schema, seen.element(), c)
	}
	for name, child := range n.properties {
		if !child.anyRules {
			continue
		}
		p := seen.property(name, child)
		if p == nil {
			continue
		}
		below := newRuleTree(child, p, c)
		if below == nil {
			continue
		}
		if t.properties == nil {
			t.properties = map[string]*ruleTree{}
		}
		t.properties[name] = below
	}
	if n.rules == "" && t.items == nil && t.additional == nil && t.properties == nil {
		return nil
	}
	t.names = slices.Sorted(maps.Keys(t.properties))
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
		t.compiler.Lock()
		defer t.compiler.Unlock()
		t.rules, t.err = t.compiler.all(t.node, t.seen)
	})
	return t.rules, t.err
}

var errNoType = errors.New("failed to convert to declType for CEL validation rules")

// ruleCompiler compiles the rules of one schema, or of all of one CRD: what they have in common is
// compiled once. It is for one goroutine.
type ruleCompiler struct {
	language  func(expr string, isMessage bool) *language              // that an expression is written in
	estimator func(self *node, checked *ast.AST) checker.CostEstimator // nil: programs are wanted, and no costs
	name      string                                                   // of the type of self

	known map[exprKey][]*expression
}

// newRuleCompiler is for the rules in js. They must not know the name of the type of self, for they
// could construct values of it.
func newRuleCompiler(js ...[]byte) *ruleCompiler {
	h := crc32.NewIEEE()
	for _, part := range js {
		_, _ = h.Write(part)
	}
	return &ruleCompiler{name: fmt.Sprintf("selfType%d", h.Sum32()), known: map[exprKey][]*expression{}}
}

// all compiles the rules of n, the values of which have the type of seen.
func (c *ruleCompiler) all(n, seen *node) ([]compiledRule, error) {
	rules := readRules(n.rules)
	if len(rules) > 0 && seen == nil {
		return nil, errNoType
	}
	scopes := map[*language]*scope{}
	out := make([]compiledRule, len(rules))
	for i, r := range rules {
		out[i] = compiledRule{rule: r}
		c.compile(&out[i], seen, scopes)
		if r.fieldPath != "" && out[i].err == nil && out[i].messageErr == nil {
			out[i].path = normalizedFieldPath(r.fieldPath, n)
		}
	}
	return out, nil
}

func (c *ruleCompiler) compile(r *compiledRule, seen *node, scopes map[*language]*scope) {
	if strings.TrimSpace(r.rule.rule) == "" {
		return
	}
	x := c.expression(exprKey{c.language(r.rule.rule, false), r.rule.rule, r.optionalOldSelf, false}, seen, scopes)
	r.program, r.usesOldSelf, r.err = x.program, x.usesOldSelf, x.err
	if r.err != nil {
		return
	}
	r.cost, r.err = c.cost(x, seen)
	if r.messageExpression == "" {
		return
	}
	m := c.expression(exprKey{c.language(r.messageExpression, true), r.messageExpression, r.optionalOldSelf, true}, seen, scopes)
	if r.messageErr = m.err; m.err == nil {
		r.message, r.messageFails = m.program, new(sync.Once)
		r.messageCost, r.messageErr = c.cost(m, seen)
	}
}

func (c *ruleCompiler) cost(x *expression, seen *node) (uint64, *apicel.Error) {
	if c.estimator == nil {
		return 0, nil
	}
	cost, err := x.language.env.EstimateCost(x.checked, c.estimator(seen, x.checked.NativeRep()))
	if err != nil {
		return 0, &apicel.Error{Type: apicel.ErrorTypeInternal, Detail: "cost estimation failed: " + err.Error()}
	}
	return cost.Max, nil
}

// exprKey is all that decides over a compiled expression but the types that it sees.
type exprKey struct {
	language  *language
	text      string
	optional  bool // oldSelf is
	isMessage bool
}

// expression is compiled, or err says why not. It holds for every self for which the types that the
// checker asked for are the same.
type expression struct {
	exprKey
	self    *types.Type
	lookups []lookup

	checked     *cel.Ast
	program     cel.Program
	usesOldSelf bool
	err         *apicel.Error
}

// What is remembered, at most: so many expressions, and each for so many types.
const (
	maxKnown    = 1000
	maxVariants = 8
)

func (c *ruleCompiler) expression(key exprKey, seen *node, scopes map[*language]*scope) *expression {
	s := scopes[key.language]
	if s == nil {
		s = newScope(key.language, seen, c.name)
		scopes[key.language] = s
	}
	known := c.known[key]
	for _, x := range known {
		if x.self.IsExactType(s.self) && s.agrees(x.lookups) {
			return x
		}
	}
	x := &expression{exprKey: key, self: s.self}
	s.lookups = nil
	x.err = x.compile(s)
	x.lookups = s.lookups
	if c.estimator == nil {
		x.checked = nil // it was for the program
	} else {
		x.program = nil // it only had to be possible
	}
	if len(known) < maxVariants && (len(known) > 0 || len(c.known) < maxKnown) {
		c.known[key] = append(known, x)
	}
	return x
}

// The texts of errors: of rules, and of messageExpressions.
var exprTexts = map[bool]struct{ compile, instantiate, typ string }{
	false: {"compilation failed: ", "program instantiation failed: ", "cel expression must evaluate to a bool"},
	true:  {"messageExpression compilation failed: ", "messageExpression instantiation failed: ", "messageExpression must evaluate to a string"},
}

func (x *expression) compile(s *scope) *apicel.Error {
	texts, want := exprTexts[x.isMessage], types.BoolType
	if x.isMessage {
		want = types.StringType
	}
	invalid := func(detail string) *apicel.Error {
		return &apicel.Error{Type: apicel.ErrorTypeInvalid, Detail: detail}
	}
	chk, err := s.checker(x.optional)
	if err != nil {
		return invalid(texts.compile + err.Error())
	}
	checked, issues := x.language.check(x.text, chk, false)
	if issues.Err() != nil {
		return invalid(texts.compile + issues.String())
	}
	if checked.OutputType() != want {
		return invalid(texts.typ)
	}
	for _, ref := range checked.NativeRep().ReferenceMap() {
		x.usesOldSelf = x.usesOldSelf || ref.Name == oldSelfVar
	}
	program, err := x.language.env.Program(checked, cel.InterruptCheckFrequency(celconfig.CheckFrequency))
	if err != nil {
		return invalid(texts.instantiate + err.Error())
	}
	x.checked, x.program = checked, program
	return nil
}
