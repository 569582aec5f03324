package schema

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

	"github.com/trellis-k8s/trellis/internal/object"
)

// Derivation computes one field of an object at one version from the object at another, by a CEL expression
// in which self is that object, as the rules at the root of its schema see it. It is immutable and safe for
// concurrent use.
type Derivation struct {
	Target []string   // the fields on the way to the one that is computed
	Reads  [][]string // the fields of self that the expression reads, or computes with all that is below them
	Texts  []string   // the strings that stand in the expression
	Cost   uint64     // estimated, at most

	program cel.Program
	seen    *node
	target  *node
	plain   []string // the expression is this field of self, and nothing else
}

// NewDerivation compiles an expression for an object of schema from, the value of which has to fit the field
// target of schema to. A stored one may use what new ones may not. An error says what is wrong, in CEL's words where
// that is the expression.
func NewDerivation(from, to *Schema, expression string, target []string, stored bool) (*Derivation, error) {
	if from.root == nil || to.root == nil {
		return nil, errors.New("both versions need a schema")
	}
	d := &Derivation{Target: target, seen: from.root.asResource()}
	if d.target = to.root.at(target); d.target == nil {
		return nil, errors.New("the schema has no such field")
	}
	l := newLanguage()
	if stored {
		l = storedLanguage()
	}
	s := newScope(l, d.seen, fmt.Sprintf("selfType%d", crc32.ChecksumIEEE([]byte(expression))))
	chk, err := checker.NewEnv(l.env.Container, s, checker.CrossTypeNumericComparisons(true), checker.ValidatedDeclarations(l.declared))
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
	if err := s.fits(checked.OutputType(), d.target); err != nil {
		return nil, err
	}
	cost, err := l.env.EstimateCost(checked, newEstimator(d.seen, checked.NativeRep()))
	if err != nil {
		return nil, fmt.Errorf("cost estimation failed: %w", err)
	}
	d.Cost = cost.Max
	if d.program, err = l.env.Program(checked, cel.InterruptCheckFrequency(celconfig.CheckFrequency)); err != nil {
		return nil, fmt.Errorf("program instantiation failed: %w", err)
	}
	d.read(checked.NativeRep().Expr())
	return d, nil
}

// read notes what the expression reads: "self.spec" in "self.spec.host" is no read of all of spec.
func (d *Derivation) read(e ast.Expr) {
	d.plain, _ = fieldOf(e)
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

// selected takes "a.b" and "a.?b" apart; has(a.b) is neither.
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

// fieldOf is the field of self that e is.
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

// noSuchKey begins the error of an expression that reads a field that is not there.
const noSuchKey = "no such key: "

// Value computes the field. ok is false where it is to be left out: the expression is optional.none(), or reads
// a field that self does not have. What it costs is taken from budget. The value shares nothing with self.
func (d *Derivation) Value(ctx context.Context, self object.Tree, budget *int64) (v any, ok bool, err error) {
	if len(d.plain) > 0 {
		v, ok = lookUp(self, d.plain)
		return object.CopyValue(v), ok, nil
	}
	e := evaluation{ctx: ctx, budget: *budget}
	result, err := e.run(d.program, &variables{self: d.seen.view(self)})
	*budget = e.budget
	switch {
	case err == errBudget:
		return nil, false, errors.New("the cost budget of the conversion is used up")
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
	if v, err = d.target.native(result); err != nil {
		return nil, false, err
	}
	return v, true, d.target.accepts(v)
}

// lookUp is the value at a path of fields.
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

// at is the node at a path of fields that have names; nil if there is none.
func (n *node) at(path []string) *node {
	for _, name := range path {
		if n == nil || n.types != isObject {
			return nil
		}
		n = n.properties[name]
	}
	return n
}
