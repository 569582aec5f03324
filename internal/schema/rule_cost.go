package schema

import (
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	apicel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/library"
)

// Costs are upstream's, but for two things that it takes to be of any size: what string() makes
// of a scalar, and what is in the items of a list behind filter(). There they can only be lower.

// estimator knows what an expression can cost.
type estimator struct{ library.CostEstimator }

// newEstimator is for one checked expression; self is the node of the values that it is evaluated on.
func newEstimator(self *node, checked *ast.AST) checker.CostEstimator {
	f := filtered{self: self, vars: map[string][]origin{}, nodes: map[int64]*node{}}
	f.visit(checked.Expr())
	return &estimator{library.CostEstimator{SizeEstimator: sizes{self, f.nodes}}}
}

// EstimateCallCost implements checker.CostEstimator.
func (e *estimator) EstimateCallCost(function, overload string, target *checker.AstNode, args []checker.AstNode) *checker.CallEstimate {
	longest := uint64(0)
	switch overload {
	case overloads.BoolToString:
		longest = uint64(len("false"))
	case overloads.IntToString, overloads.UintToString:
		longest = uint64(len("-9223372036854775808"))
	case overloads.DoubleToString:
		longest = uint64(len("-1.7976931348623157e+308"))
	case overloads.TimestampToString, overloads.DurationToString:
		longest = apicel.MaxDatetimeSizeJSON
	default:
		return e.CostEstimator.EstimateCallCost(function, overload, target, args)
	}
	return &checker.CallEstimate{CostEstimate: checker.FixedCostEstimate(1), ResultSize: &checker.SizeEstimate{Min: 1, Max: longest}}
}

// sizes knows from the schema how large values can be.
type sizes struct {
	self     *node
	filtered map[int64]*node
}

// EstimateSize implements checker.CostEstimator.
func (s sizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	size := s.byPath(element.Path())
	if element.Expr() == nil {
		return size
	}
	if n := s.filtered[element.Expr().ID()]; n != nil && (size == nil || size.Max > uint64(n.longest())) {
		size = &checker.SizeEstimate{Max: uint64(n.longest())}
	}
	return size
}

func (s sizes) byPath(path []string) *checker.SizeEstimate {
	if len(path) == 0 {
		return nil
	}
	n := s.self
	for _, name := range path[1:] { // behind self or oldSelf
		switch name {
		case "@items", "@values":
			n = n.element()
		case "@keys":
			if !n.isMap() {
				return nil
			}
			n = mapKey
		default:
			n = n.field(name)
		}
		if n == nil {
			return nil
		}
	}
	return &checker.SizeEstimate{Max: uint64(n.longest())}
}

// mapKey has no length: upstream says so of the keys of a map.
var mapKey = &node{typ: "boolean"}

// EstimateCallCost implements checker.CostEstimator.
func (s sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// filtered finds the values in an expression that come from the items of a list through filter(), the
// bounds of which checker.Cost loses, and the node of each.
type filtered struct {
	self  *node
	vars  map[string][]origin // those of macros, the innermost last
	nodes map[int64]*node     // by the id of the expression
}

// origin is where a value comes from: a node, if known, and whether through filter().
type origin struct {
	node    *node
	through bool
}

func (f *filtered) visit(e ast.Expr) (o origin) {
	switch e.Kind() {
	case ast.IdentKind:
		o = f.variable(e.AsIdent())
	case ast.SelectKind:
		o = f.visit(e.AsSelect().Operand())
		if e.AsSelect().IsTestOnly() || o.node == nil {
			return origin{}
		}
		o.node = o.node.field(e.AsSelect().FieldName())
	case ast.CallKind:
		o = f.call(e.AsCall())
	case ast.ListKind:
		for _, item := range e.AsList().Elements() {
			f.visit(item)
		}
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			f.visit(entry.AsMapEntry().Key())
			f.visit(entry.AsMapEntry().Value())
		}
	case ast.ComprehensionKind:
		o = f.comprehension(e.AsComprehension())
	}
	if o.through && o.node != nil {
		f.nodes[e.ID()] = o.node
	}
	return o
}

func (f *filtered) variable(name string) origin {
	if stack := f.vars[name]; len(stack) > 0 {
		return stack[len(stack)-1]
	}
	if name == selfVar || name == oldSelfVar {
		return origin{node: f.self}
	}
	return origin{}
}

func (f *filtered) call(c ast.CallExpr) (o origin) {
	if c.IsMemberFunction() {
		f.visit(c.Target())
	}
	for i, arg := range c.Args() {
		if of := f.visit(arg); i == 0 && c.FunctionName() == operators.Index {
			o = origin{of.node.element(), of.through}
		}
	}
	return o
}

func (f *filtered) comprehension(c ast.ComprehensionExpr) (o origin) {
	list := f.visit(c.IterRange())
	if list.node.isMap() {
		list.node = nil
	}
	f.visit(c.AccuInit())
	bind := map[string]origin{c.AccuVar(): {}, c.IterVar(): {list.node.element(), list.through}}
	if c.HasIterVar2() {
		bind[c.IterVar()], bind[c.IterVar2()] = origin{}, bind[c.IterVar()]
	}
	for name, o := range bind {
		f.vars[name] = append(f.vars[name], o)
	}
	f.visit(c.LoopCondition())
	f.visit(c.LoopStep())
	f.visit(c.Result())
	for name := range bind {
		f.vars[name] = f.vars[name][:len(f.vars[name])-1]
	}
	if list.node != nil && isFilter(c) {
		return origin{list.node, true}
	}
	return origin{}
}

// isFilter recognizes what the macro filter() becomes: each item is appended, or not.
func isFilter(c ast.ComprehensionExpr) bool {
	is := func(e ast.Expr, name string) bool { return e.Kind() == ast.IdentKind && e.AsIdent() == name }
	step := c.LoopStep()
	if c.HasIterVar2() || step.Kind() != ast.CallKind || step.AsCall().FunctionName() != operators.Conditional {
		return false
	}
	kept, left := step.AsCall().Args()[1], step.AsCall().Args()[2]
	if kept.Kind() != ast.CallKind || kept.AsCall().FunctionName() != operators.Add || len(kept.AsCall().Args()) != 2 {
		return false
	}
	to, item := kept.AsCall().Args()[0], kept.AsCall().Args()[1]
	return is(to, c.AccuVar()) && is(left, c.AccuVar()) && is(c.Result(), c.AccuVar()) &&
		c.AccuInit().Kind() == ast.ListKind && c.AccuInit().AsList().Size() == 0 &&
		item.Kind() == ast.ListKind && item.AsList().Size() == 1 && is(item.AsList().Elements()[0], c.IterVar())
}

// maxCardinality is how many values of n fit into one request.
func (n *node) maxCardinality() uint64 {
	return uint64(maxRequest / (n.smallest() + len64(`,`)))
}
