package cel

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/decls"
	"github.com/google/cel-go/common/types"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apicel "k8s.io/apiserver/pkg/cel"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// Derivation computes one field of an object at a new version from the object at its old version. It evaluates a CEL
// expression in which self is the old object. The type of self is the same as in rules at the root of the old schema.
// A Derivation is immutable and safe for concurrent use.
type Derivation struct {
	Target []string   // path of the computed field
	Reads  [][]string // paths of the fields of self that the expression uses
	Texts  []string   // string literals of the expression
	Cost   uint64     // estimated maximum

	program  cel.Program
	celNode  *schema.Node
	target   *schema.Node
	selfPath []string // set if the whole expression is only this field of self
}

// NewDerivation compiles an expression for objects with the schema from. Its result must be assignable to the field
// target in the schema to. If stored is true, the expression is stored already and may use functions that are not
// allowed in new expressions. Compile errors are in CEL's words.
func NewDerivation(from, to *schema.Schema, expression string, target []string, stored bool) (*Derivation, error) {
	if from.Root == nil || to.Root == nil {
		return nil, errors.New("both versions need a schema")
	}
	d := &Derivation{Target: target, celNode: asResource(from.Root)}
	if d.target = descendant(to.Root, target); d.target == nil {
		return nil, errors.New("the schema has no such field")
	}
	l := newLanguage()
	if stored {
		l = storedLanguage()
	}
	s := newScope(l, d.celNode, fmt.Sprintf("selfType%d", crc32.ChecksumIEEE([]byte(expression))))
	chk, err := checker.NewEnv(l.env.Container, s, checker.CrossTypeNumericComparisons(true),
		checker.ValidatedDeclarations(l.declared))
	if err == nil {
		err = chk.AddIdents(decls.NewVariable(selfVar, s.self))
	}
	if err != nil {
		return nil, err
	}
	checked, issues := l.check(expression, chk, true)
	if issues.Err() != nil {
		return nil, fmt.Errorf("compilation failed: %s", issues.String())
	}
	if err := s.checkAssignable(checked.OutputType(), d.target); err != nil {
		return nil, err
	}
	cost, err := l.env.EstimateCost(checked, newEstimator(d.celNode, checked.NativeRep()))
	if err != nil {
		return nil, fmt.Errorf("cost estimation failed: %w", err)
	}
	d.Cost = cost.Max
	if d.program, err = l.env.Program(checked, cel.InterruptCheckFrequency(celconfig.CheckFrequency)); err != nil {
		return nil, fmt.Errorf("program instantiation failed: %w", err)
	}
	d.collectReads(checked.NativeRep().Expr())
	return d, nil
}

// collectReads sets the paths that the expression reads. For example, "self.spec.host" reads only the path spec.host.
func (d *Derivation) collectReads(e ast.Expr) {
	d.selfPath, _ = fieldOf(e)
	paths, whole := map[string][]string{}, map[string]int{}
	count := func(e ast.Expr, by int) {
		if path, ok := fieldOf(e); ok {
			key := strings.Join(path, "\x00")
			paths[key] = path
			whole[key] += by
		}
	}
	ast.PreOrderVisit(e, ast.NewExprVisitor(func(e ast.Expr) {
		count(e, 1)
		if operand, _, ok := selected(e); ok {
			count(operand, -1)
		} else if e.Kind() == ast.SelectKind { // has()
			count(e.AsSelect().Operand(), -1)
		} else if e.Kind() == ast.LiteralKind {
			if s, ok := e.AsLiteral().Value().(string); ok {
				d.Texts = append(d.Texts, s)
			}
		}
	}))
	for _, key := range slices.Sorted(maps.Keys(paths)) {
		if whole[key] > 0 {
			d.Reads = append(d.Reads, paths[key])
		}
	}
}

// selected splits a selection, "a.b" or "a.?b", into its operand and its field. has(a.b) is not a selection.
func selected(e ast.Expr) (operand ast.Expr, field string, ok bool) {
	switch e.Kind() {
	case ast.SelectKind:
		s := e.AsSelect()
		return s.Operand(), s.FieldName(), !s.IsTestOnly()
	case ast.CallKind:
		if c := e.AsCall(); c.FunctionName() == "_?._" && len(c.Args()) == 2 && c.Args()[1].Kind() == ast.LiteralKind {
			field, ok = c.Args()[1].AsLiteral().Value().(string)
			return c.Args()[0], field, ok
		}
	}
	return nil, "", false
}

// fieldOf returns the path of the field if the expression e is self or selects a field of self.
func fieldOf(e ast.Expr) (path []string, ok bool) {
	if e.Kind() == ast.IdentKind {
		return nil, e.AsIdent() == selfVar
	}
	operand, name, ok := selected(e)
	if !ok {
		return nil, false
	}
	if raw, escaped := apicel.Unescape(name); escaped {
		name = raw
	}
	path, ok = fieldOf(operand)
	return append(path, name), ok
}

// noSuchKey is the prefix of CEL's error when an expression reads a missing field.
const noSuchKey = "no such key: "

// Value computes the field. ok is false if the field must be omitted, because the result is optional.none() or
// because the expression reads a field that is missing in self. The cost is subtracted from budget. The value shares
// no memory with self.
func (d *Derivation) Value(ctx context.Context, self object.Tree, budget *int64) (v any, ok bool, err error) {
	if len(d.selfPath) > 0 {
		v, ok = lookUp(self, d.selfPath)
		return object.CopyValue(v), ok, nil
	}
	e := evaluation{ctx: ctx, budget: *budget}
	result, err := e.run(d.program, &variables{self: viewOf(d.celNode, self)})
	*budget = e.budget
	switch {
	case err == errBudget:
		return nil, false, errors.New("the conversion exceeded its cost budget")
	case err != nil && strings.HasPrefix(err.Error(), noSuchKey):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	if o, is := result.(*types.Optional); is {
		if !o.HasValue() {
			return nil, false, nil
		}
		result = o.GetValue()
	}
	if v, err = fromCEL(d.target, result); err != nil {
		return nil, false, err
	}
	return v, true, validateTypes(d.target, v)
}

// lookUp returns the value at a path of field names.
func lookUp(t object.Tree, path []string) (v any, ok bool) {
	for i, name := range path {
		if v, ok = t[name]; !ok {
			return nil, false
		}
		if t, ok = v.(object.Tree); !ok && i < len(path)-1 {
			return nil, false
		}
	}
	return v, true
}

// descendant returns the node at a path of property names, or nil.
func descendant(n *schema.Node, path []string) *schema.Node {
	for _, name := range path {
		if n == nil || n.Types != schema.Object {
			return nil
		}
		n = n.Properties[name]
	}
	return n
}
