// Package cel evaluates CEL expressions on objects with a schema: the rules of x-kubernetes-validations, and the
// expressions of declared conversions.
package cel

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

	"github.com/trellis-k8s/trellis/internal/crd/schema"
)

// compiledRule is a compiled rule. If the rule is not empty, either program or err is set. If it has a
// messageExpression, either message or messageErr is set.
type compiledRule struct {
	schema.Rule
	program     cel.Program // returns a bool
	message     cel.Program // returns a string
	usesOldSelf bool
	path        string // normalized fieldPath, "" means none
	err         *apicel.Error
	messageErr  *apicel.Error

	messageFails *sync.Once // limits logging of failed message expressions; set if message is set

	cost, messageCost uint64 // estimated maximum costs; 0 without an estimator
}

// ruleTree contains only the nodes that have rules at or below them, so that evaluation visits no other nodes. As in
// upstream, it does not contain nodes below a value of unknown type.
type ruleTree struct {
	node       *schema.Node // Schema of the value
	celNode    *schema.Node // Schema of the value as rules see it; nil if rules cannot access the value
	properties map[string]*ruleTree
	names      []string // of properties, sorted
	items      *ruleTree
	additional *ruleTree

	compiler *treeCompiler
	once     sync.Once
	rules    []compiledRule
	err      error
}

// treeCompiler holds the compiler that all nodes of one tree share.
type treeCompiler struct {
	sync.Mutex
	*ruleCompiler
}

// newTreeCompiler returns a compiler for stored rules.
func newTreeCompiler(root *schema.Node) *treeCompiler {
	c := newRuleCompiler([]byte(root.Rules))
	c.language = func(string, bool) *language { return storedLanguage() }
	return &treeCompiler{ruleCompiler: c}
}

// Rules holds the rules of one schema. It is safe for concurrent use. Rules are compiled on first use.
type Rules struct{ tree func() *ruleTree }

// NewRules returns the rules of s.
func NewRules(s *schema.Schema) *Rules {
	return &Rules{sync.OnceValue(func() *ruleTree {
		root := s.StructuralRoot()
		if root == nil {
			return nil
		}
		return newRuleTree(root, asResource(root), newTreeCompiler(root))
	})}
}

// Empty reports whether the schema has no rules that the server evaluates.
func (r *Rules) Empty() bool { return r.tree() == nil }

// newRuleTree returns the rule tree of n. It returns nil if the server evaluates no rules at or below n. celNode is n
// as rules see it.
func newRuleTree(n, celNode *schema.Node, c *treeCompiler) *ruleTree {
	if n == nil || !n.HasRules() {
		return nil
	}
	t := &ruleTree{node: n, celNode: celNode, compiler: c}
	t.items = newRuleTree(n.Items, elementNode(celNode), c)
	if n.Additional != nil {
		t.additional = newRuleTree(n.Additional.Schema, elementNode(celNode), c)
	}
	for name, child := range n.Properties {
		if !child.HasRules() {
			continue
		}
		p := propertyNode(celNode, name, child)
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
	if n.Rules == "" && t.items == nil && t.additional == nil && t.properties == nil {
		return nil
	}
	t.names = slices.Sorted(maps.Keys(t.properties))
	return t
}

// propertyNode returns the property child of n as rules see it. It returns nil if rules cannot access the property. The
// Rules of a property whose name cannot be used in expressions are evaluated too.
func propertyNode(n *schema.Node, name string, child *schema.Node) *schema.Node {
	if n == nil || hiddenFromCEL(child) {
		return nil
	}
	if escaped, ok := apicel.Escape(name); ok {
		return fieldNode(n, escaped)
	}
	return asCELNode(child)
}

// compiled returns the rules of the node of t, without those below it. The first call compiles them as stored rules.
// It returns an error if the type of self cannot be declared.
func (t *ruleTree) compiled() ([]compiledRule, error) {
	t.once.Do(func() {
		t.compiler.Lock()
		defer t.compiler.Unlock()
		t.rules, t.err = t.compiler.all(t.node, t.celNode)
	})
	return t.rules, t.err
}

var errNoType = errors.New("failed to convert to declType for CEL validation rules")

// ruleCompiler compiles the rules of one schema or of one CRD. It compiles equal expressions only once. It must be
// used by one goroutine only.
type ruleCompiler struct {
	// returns the language that an expression may use
	language func(expr string, isMessage bool) *language
	// nil means that programs are created and costs are not estimated
	estimator func(self *schema.Node, checked *ast.AST) checker.CostEstimator
	name      string // type name of self

	cache map[exprKey][]*expression
}

// newRuleCompiler returns a compiler for the rules in js. The name of the type of self depends on js. Rules therefore
// cannot predict the name, which would allow them to construct values of this type.
func newRuleCompiler(js ...[]byte) *ruleCompiler {
	h := crc32.NewIEEE()
	for _, part := range js {
		_, _ = h.Write(part)
	}
	return &ruleCompiler{name: fmt.Sprintf("selfType%d", h.Sum32()), cache: map[exprKey][]*expression{}}
}

// all compiles the rules of n. celNode is n as rules see it.
func (c *ruleCompiler) all(n, celNode *schema.Node) ([]compiledRule, error) {
	rules := n.Rules.All()
	if len(rules) > 0 && celNode == nil {
		return nil, errNoType
	}
	scopes := map[*language]*scope{}
	out := make([]compiledRule, len(rules))
	for i, r := range rules {
		out[i] = compiledRule{Rule: r}
		c.compile(&out[i], celNode, scopes)
		if r.FieldPath != "" && out[i].err == nil && out[i].messageErr == nil {
			out[i].path = schema.NormalizedFieldPath(r.FieldPath, n)
		}
	}
	return out, nil
}

func (c *ruleCompiler) compile(r *compiledRule, celNode *schema.Node, scopes map[*language]*scope) {
	if strings.TrimSpace(r.Rule.Rule) == "" {
		return
	}
	x := c.expression(exprKey{c.language(r.Rule.Rule, false), r.Rule.Rule, r.IsOldSelfOptional(), false}, celNode,
		scopes)
	r.program, r.usesOldSelf, r.err = x.program, x.usesOldSelf, x.err
	if r.err != nil {
		return
	}
	r.cost, r.err = c.cost(x, celNode)
	if r.MessageExpression == "" {
		return
	}
	m := c.expression(exprKey{c.language(r.MessageExpression, true), r.MessageExpression, r.IsOldSelfOptional(), true},
		celNode, scopes)
	if r.messageErr = m.err; m.err == nil {
		r.message, r.messageFails = m.program, new(sync.Once)
		r.messageCost, r.messageErr = c.cost(m, celNode)
	}
}

func (c *ruleCompiler) cost(x *expression, celNode *schema.Node) (uint64, *apicel.Error) {
	if c.estimator == nil {
		return 0, nil
	}
	cost, err := x.language.env.EstimateCost(x.checked, c.estimator(celNode, x.checked.NativeRep()))
	if err != nil {
		return 0, &apicel.Error{Type: apicel.ErrorTypeInternal, Detail: "cost estimation failed: " + err.Error()}
	}
	return cost.Max, nil
}

// exprKey identifies a compiled expression, except for the types that it uses.
type exprKey struct {
	language  *language
	text      string
	optional  bool // oldSelf is optional
	isMessage bool
}

// expression is a compiled expression, or the error of its compilation. It can be used for another type of self if
// the type lookups of the checker have the same results.
type expression struct {
	exprKey
	self    *types.Type
	lookups []lookup

	checked     *cel.Ast
	program     cel.Program
	usesOldSelf bool
	err         *apicel.Error
}

// Limits of the expression cache: the number of expressions, and the number of type variants of one expression.
const (
	maxCachedExpressions = 1000
	maxVariants          = 8
)

func (c *ruleCompiler) expression(key exprKey, celNode *schema.Node, scopes map[*language]*scope) *expression {
	s := scopes[key.language]
	if s == nil {
		s = newScope(key.language, celNode, c.name)
		scopes[key.language] = s
	}
	known := c.cache[key]
	for _, x := range known {
		if x.self.IsExactType(s.self) && s.resolvesSame(x.lookups) {
			return x
		}
	}
	x := &expression{exprKey: key, self: s.self}
	s.lookups = nil
	x.err = x.compile(s)
	x.lookups = s.lookups
	if c.estimator == nil {
		x.checked = nil // only compilation needs it
	} else {
		x.program = nil // only its creation is checked
	}
	if len(known) < maxVariants && (len(known) > 0 || len(c.cache) < maxCachedExpressions) {
		c.cache[key] = append(known, x)
	}
	return x
}

// exprTexts holds the error texts for rules (false) and for messageExpressions (true).
var exprTexts = map[bool]struct{ compile, instantiate, typ string }{
	false: {"compilation failed: ", "program instantiation failed: ", "cel expression must evaluate to a bool"},
	true: {"messageExpression compilation failed: ", "messageExpression instantiation failed: ",
		"messageExpression must evaluate to a string"},
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
