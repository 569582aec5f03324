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

// CheckDefaults checks the defaults of s, which lies at path, as a write of a CRD does: each fits
// the schema of its node. If pruned, none may have fields that the schema does not know, other than in
// the metadata of an object. Defaults below additionalProperties are not looked at, as upstream.
func (s *Schema) CheckDefaults(ctx context.Context, path *field.Path, pruned bool) field.ErrorList {
	if !s.root.has(defaults) {
		return nil
	}
	root := s.asResource()
	c := defaultChecker{ctx: ctx, pruned: pruned, budget: celconfig.RuntimeCELCostBudget, compiler: newTreeCompiler(root)}
	c.node(root, defaultPlace{}, path)
	return c.errs
}

type defaultChecker struct {
	ctx      context.Context
	pruned   bool
	budget   int64 // of all rules; nothing more is checked once it is negative
	compiler *treeCompiler
	errs     field.ErrorList
}

// defaultPlace is where a node lies in the resource around it.
type defaultPlace struct {
	resource *node
	steps    []step
	meta     bool // at or below apiVersion, kind or metadata
}

func (p defaultPlace) below(at step) defaultPlace {
	p.steps = append(slices.Clip(p.steps), at)
	return p
}

func (c *defaultChecker) node(n *node, at defaultPlace, path *field.Path) {
	if !n.has(defaults) || c.budget < 0 {
		return
	}
	if n.embedded {
		at = defaultPlace{resource: n}
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

// decodeDefault is the default of n as it is written; false where there is none.
func decodeDefault(n *node) (any, bool) {
	if n.defaultJSON == "" {
		return nil, false
	}
	wrapped, _, err := object.DecodeJSON(slices.Concat([]byte(`{"":`), []byte(n.defaultJSON), []byte(`}`)))
	return wrapped[""], err == nil
}

// value checks one default. The first kind of error is the only one.
func (c *defaultChecker) value(v any, n *node, at defaultPlace, path *field.Path) {
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
			c.errs = append(c.errs, under(path, e.errs)...)
			return
		}
	}
	if errs := checkValues(context.Background(), v, asWritten(n), path, func() *correlation { return nil }); len(errs) > 0 {
		c.errs = append(c.errs, errs...)
		return
	}
	c.rules(v, n, at, path)
}

// asWritten is n for the validation of defaults. There upstream takes the schema as it is written: x-kubernetes-int-or-string
// does not stand for the two types, and formats that an object's validation leaves out do count.
func asWritten(n *node) *node {
	if n == nil {
		return nil
	}
	c := *n
	c.intOrString = false
	c.types = typesOf(&c)
	if n.more != nil {
		m := *n.more
		m.not = asWritten(m.not)
		for _, list := range []*[]*node{&m.allOf, &m.anyOf, &m.oneOf} {
			*list = slices.Clone(*list)
			for i, branch := range *list {
				(*list)[i] = asWritten(branch)
			}
		}
		c.more = &m
	}
	if c.format != "" {
		c.rare().format = cmp.Or(formatOf(&c), textFormatOf(&c), formatElse)
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

// rules evaluates the rules at and below n for a default that stays as it was, and for one that is new.
func (c *defaultChecker) rules(v any, n *node, at defaultPlace, path *field.Path) {
	if !n.hasRules() {
		return
	}
	seen := visible(n)
	if n == at.resource {
		seen = n.asResource()
	}
	tree, budget := newRuleTree(n, seen, c.compiler), c.budget
	if tree == nil { // no rule sees what it stands on
		return
	}
	for _, old := range []any{v, nil} {
		e := evaluation{ctx: c.ctx, budget: budget}
		e.value(tree, &level{value: v, old: old, at: path})
		c.budget = min(c.budget, e.budget)
		if len(e.errs) > 0 {
			c.errs = append(c.errs, e.errs...)
			return
		}
	}
}

// under puts errors of a value that lies at path under it.
func under(path *field.Path, errs field.ErrorList) field.ErrorList {
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

// metadata checks a default inside of metadata by an object that has nothing else.
func (c *defaultChecker) metadata(v any, at defaultPlace) error {
	around := surrounding(v, at.steps)
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

// surrounding is the smallest object with v at a path, which begins in an object.
func surrounding(v any, path []step) object.Tree {
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

// HasUnprunedDefaults reports whether a default of s has something that does not stay when it
// is filled in.
func (s *Schema) HasUnprunedDefaults() bool {
	if s.root == nil {
		return false
	}
	root, without := s.asResource(), *s.root
	without.defaultJSON = ""
	if v, ok := decodeDefault(root); ok {
		kept, isTree := object.CopyValue(v).(object.Tree)
		if !isTree {
			return false // upstream gives up on such a schema
		}
		c := coercer{drop: true}
		_ = c.value(kept, root, nil) // it drops what it cannot coerce
		s.Prune(kept)
		if !object.Equal(kept, v) {
			return true
		}
	}
	r := defaultReader{schema: s}
	return r.anyUnpruned(&without)
}

// asResource is the root as an embedded resource, which is what defaults are put into.
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
		kept, ok := r.fitted(n)
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
