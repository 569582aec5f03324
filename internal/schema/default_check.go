package schema

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/trellis-k8s/trellis/internal/object"
)

// CheckDefaults validates the defaults of s when a CRD is written. The parameter path is the path of s in the CRD.
// Each default must be valid for the schema of its node. If pruned is true, defaults must not have unknown fields,
// except in the metadata of an object. As in upstream, defaults below additionalProperties are not checked.
func (s *Schema) CheckDefaults(ctx context.Context, path *field.Path, pruned bool) field.ErrorList {
	if !s.root.has(defaults) {
		return nil
	}
	root := s.asResource()
	c := defaultChecker{ctx: ctx, pruned: pruned, budget: celconfig.RuntimeCELCostBudget,
		compiler: newTreeCompiler(root)}
	c.node(root, defaultPosition{}, path)
	return c.errs
}

type defaultChecker struct {
	ctx      context.Context
	pruned   bool
	budget   int64 // cost budget of all rules; checking ends when it is negative
	compiler *treeCompiler
	errs     field.ErrorList
}

// defaultPosition is the position of a node in the enclosing resource.
type defaultPosition struct {
	resource *node
	steps    []step
	meta     bool // at or below apiVersion, kind or metadata
}

func (p defaultPosition) below(at step) defaultPosition {
	p.steps = append(slices.Clip(p.steps), at)
	return p
}

func (c *defaultChecker) node(n *node, at defaultPosition, path *field.Path) {
	if !n.has(defaults) || c.budget < 0 {
		return
	}
	if n.embedded {
		at = defaultPosition{resource: n}
	}
	if v, ok := decodeDefault(n); ok {
		c.value(v, n, at, path.Child("default"))
	}
	c.node(n.items, at.below(step{index: 0}), path.Child("items"))
	for _, name := range slices.Sorted(maps.Keys(n.properties)) {
		sub := at.below(step{name, -1})
		sub.meta = at.meta || n.embedded && isTypeOrMeta(name)
		c.node(n.properties[name], sub, path.Child("properties").Key(name))
	}
}

// decodeDefault returns the default of n before normalization. It returns false if n has no default.
func decodeDefault(n *node) (any, bool) {
	if n.defaultJSON == "" {
		return nil, false
	}
	wrapped, _, err := object.DecodeJSON(slices.Concat([]byte(`{"":`), []byte(n.defaultJSON), []byte(`}`)))
	return wrapped[""], err == nil
}

// value runs several checks of one default. It stops after the first check that reports errors.
func (c *defaultChecker) value(v any, n *node, at defaultPosition, path *field.Path) {
	if at.meta {
		if problem := c.metadata(object.CopyValue(v), at); problem != nil {
			c.errs = append(c.errs, field.Invalid(path, v, fmt.Sprintf("must result in valid metadata: %v", problem)))
			return
		}
	} else {
		if p := (pruner{}); c.pruned {
			if p.value(object.CopyValue(v), n); len(p.unknown.all) > 0 {
				c.errs = append(c.errs, field.Invalid(path, v, "must not have unknown fields"))
			}
		}
		if err := (&coercer{}).value(v, n, path); err != nil {
			c.errs = append(c.errs, err)
			return
		}
		e := embeddedChecker{ctx: c.ctx}
		e.value(v, n, nil)
		if len(e.errs) > 0 {
			c.errs = append(c.errs, prefixErrors(path, e.errs)...)
			return
		}
	}
	if errs := checkValues(context.Background(), v, asWritten(n), path,
		func() *correlation { return nil }); len(errs) > 0 {
		c.errs = append(c.errs, errs...)
		return
	}
	c.rules(v, n, at, path)
}

// asWritten returns a modified copy of n for the validation of defaults. As in upstream, x-kubernetes-int-or-string
// does not imply the two types in this copy, and formats that are ignored for objects are checked.
func asWritten(n *node) *node {
	if n == nil {
		return nil
	}
	c := *n
	c.intOrString = false
	c.types = typesOf(&c)
	if n.checks != nil {
		m := *n.checks
		m.not = asWritten(m.not)
		for _, list := range []*[]*node{&m.allOf, &m.anyOf, &m.oneOf} {
			*list = slices.Clone(*list)
			for i, branch := range *list {
				(*list)[i] = asWritten(branch)
			}
		}
		c.checks = &m
	}
	if c.format != "" {
		c.ensureChecks().format = cmp.Or(formatOf(&c), textFormatOf(&c), formatOther)
	}
	c.items = asWritten(c.items)
	c.properties = maps.Clone(c.properties)
	for name, child := range c.properties {
		c.properties[name] = asWritten(child)
	}
	if c.additional != nil {
		c.additional = &additional{asWritten(c.additional.schema), c.additional.allows}
	}
	return &c
}

// rules evaluates the rules at and below n twice, once as if the default were unchanged and once as if it were new.
func (c *defaultChecker) rules(v any, n *node, at defaultPosition, path *field.Path) {
	if !n.hasRules() {
		return
	}
	celNode := celNodeOf(n)
	if n == at.resource {
		celNode = n.asResource()
	}
	tree, budget := newRuleTree(n, celNode, c.compiler), c.budget
	if tree == nil { // no rule can be evaluated
		return
	}
	for _, old := range []any{v, nil} {
		e := evaluation{ctx: c.ctx, budget: budget}
		e.value(tree, &valuePair{value: v, old: old, base: path})
		c.budget = min(c.budget, e.budget)
		if len(e.errs) > 0 {
			c.errs = append(c.errs, e.errs...)
			return
		}
	}
}

// prefixErrors prepends path to the paths of errs.
func prefixErrors(path *field.Path, errs field.ErrorList) field.ErrorList {
	var none *field.Path
	for _, err := range errs {
		switch {
		case err.Field == none.String():
			err.Field = path.String()
		case strings.HasPrefix(err.Field, "["):
			err.Field = path.String() + err.Field
		default:
			err.Field = path.String() + "." + err.Field
		}
	}
	return errs
}

// metadata checks a default inside metadata. It checks the default as a part of an object that has no other fields.
func (c *defaultChecker) metadata(v any, at defaultPosition) error {
	around := wrapAtPath(v, at.steps)
	for key, value := range map[string]string{"apiVersion": "validation/v1", "kind": "Validation"} {
		if _, ok := around[key]; !ok {
			around[key] = value
		}
	}
	if err := (&coercer{}).value(around, at.resource, nil); err != nil {
		return err
	}
	e := embeddedChecker{ctx: c.ctx}
	if e.value(around, at.resource, nil); len(e.errs) > 0 {
		return e.errs.ToAggregate()
	}
	return nil
}

// wrapAtPath returns the smallest object that contains v at path. The first step of path must be a field.
func wrapAtPath(v any, path []step) object.Tree {
	for _, at := range slices.Backward(path) {
		if at.index >= 0 {
			v = []any{v}
		} else {
			v = object.Tree{at.key: v}
		}
	}
	t, _ := v.(object.Tree)
	return t
}

// HasUnprunedDefaults reports whether a default of s has unknown fields, which pruning removes when the default is
// filled in.
func (s *Schema) HasUnprunedDefaults() bool {
	if s.root == nil {
		return false
	}
	root, without := s.asResource(), *s.root
	without.defaultJSON = ""
	if v, ok := decodeDefault(root); ok {
		kept, isTree := object.CopyValue(v).(object.Tree)
		if !isTree {
			return false // upstream does not check such a schema
		}
		c := coercer{drop: true}
		_ = c.value(kept, root, nil) // drop is set: no error
		s.Prune(kept)
		if !object.Equal(kept, v) {
			return true
		}
	}
	r := defaultReader{schema: s}
	return r.anyUnpruned(&without)
}

// asResource returns a copy of the root that is an embedded resource, because defaults are filled into whole objects.
func (s *Schema) asResource() *node {
	root := *s.root
	root.embedded = true
	root.traits |= embedded
	return &root
}

func (r *defaultReader) anyUnpruned(n *node) bool {
	if !n.has(defaults) {
		return false
	}
	if written, ok := decodeDefault(n); ok {
		kept, ok := r.normalizedDefault(n)
		if !ok || !object.Equal(kept, written) {
			return true
		}
	}
	below := func(at step, child *node) bool {
		r.path = append(r.path, at)
		defer func() { r.path = r.path[:len(r.path)-1] }()
		return r.anyUnpruned(child)
	}
	for name, child := range n.properties {
		if below(step{name, -1}, child) {
			return true
		}
	}
	return below(step{index: 0}, n.items) || n.additional != nil && below(step{"*", -1}, n.additional.schema)
}
