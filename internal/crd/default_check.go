package crd

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd/cel"
	"github.com/trellis-k8s/trellis/internal/crd/defaulting"
	"github.com/trellis-k8s/trellis/internal/crd/ratchet"
	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/crd/validation"
	"github.com/trellis-k8s/trellis/internal/object"
)

// CheckDefaults validates the defaults when a CRD is written. The parameter path is the path of the schema in the CRD.
// Each default must be valid for the schema of its node. If pruned is true, defaults must not have unknown fields,
// except in the metadata of an object. As in upstream, defaults below additionalProperties are not checked.
func (c *Compiled) CheckDefaults(ctx context.Context, path *field.Path, pruned bool) field.ErrorList {
	if !c.Schema.Root.Has(schema.Defaults) {
		return nil
	}
	root := defaulting.AsResource(c.Schema.Root)
	d := defaultChecker{ctx: ctx, pruned: pruned, rules: cel.NewValueRules(root)}
	d.node(root, defaultPosition{}, path)
	return d.errs
}

type defaultChecker struct {
	ctx    context.Context
	pruned bool
	rules  *cel.ValueRules
	errs   field.ErrorList
}

// defaultPosition is the position of a node in the enclosing resource.
type defaultPosition struct {
	resource *schema.Node
	steps    []defaulting.Step
	meta     bool // at or below apiVersion, kind or metadata
}

func (p defaultPosition) below(at defaulting.Step) defaultPosition {
	p.steps = append(slices.Clip(p.steps), at)
	return p
}

func (c *defaultChecker) node(n *schema.Node, at defaultPosition, path *field.Path) {
	if !n.Has(schema.Defaults) || c.rules.Exhausted() {
		return
	}
	if n.Embedded {
		at = defaultPosition{resource: n}
	}
	if v, ok := defaulting.DecodeDefault(n); ok {
		c.value(v, n, at, path.Child("default"))
	}
	c.node(n.Items, at.below(defaulting.Item), path.Child("items"))
	for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
		sub := at.below(defaulting.Field(name))
		sub.meta = at.meta || n.Embedded && schema.IsTypeOrMeta(name)
		c.node(n.Properties[name], sub, path.Child("properties").Key(name))
	}
}

// value runs several checks of one default. It stops after the first check that reports errors.
func (c *defaultChecker) value(v any, n *schema.Node, at defaultPosition, path *field.Path) {
	if at.meta {
		if problem := c.metadata(object.CopyValue(v), at); problem != nil {
			c.errs = append(c.errs, field.Invalid(path, v, fmt.Sprintf("must result in valid metadata: %v", problem)))
			return
		}
	} else {
		if c.pruned && defaulting.HasUnknownFields(v, n) {
			c.errs = append(c.errs, field.Invalid(path, v, "must not have unknown fields"))
		}
		if err := defaulting.Coerce(v, n, path); err != nil {
			c.errs = append(c.errs, err)
			return
		}
		if errs := validation.Embedded(c.ctx, v, n); len(errs) > 0 {
			c.errs = append(c.errs, prefixErrors(path, errs)...)
			return
		}
	}
	errs := validation.Value(context.Background(), v, asWritten(n), path,
		func() *ratchet.Correlation { return nil })
	if len(errs) == 0 {
		errs = c.rules.Evaluate(c.ctx, v, n, n == at.resource, path)
	}
	c.errs = append(c.errs, errs...)
}

// asWritten returns a modified copy of n for the validation of defaults. As in upstream, x-kubernetes-int-or-string
// does not imply the two types in this copy, and formats that are ignored for objects are checked.
func asWritten(n *schema.Node) *schema.Node {
	if n == nil {
		return nil
	}
	c := *n
	c.IntOrString = false
	c.Types = schema.TypesOf(&c)
	if n.Checks != nil {
		m := *n.Checks
		m.Not = asWritten(m.Not)
		for _, list := range []*[]*schema.Node{&m.AllOf, &m.AnyOf, &m.OneOf} {
			*list = slices.Clone(*list)
			for i, branch := range *list {
				(*list)[i] = asWritten(branch)
			}
		}
		c.Checks = &m
	}
	if c.Format != "" {
		c.EnsureChecks().Format = cmp.Or(schema.FormatOf(&c), schema.TextFormatOf(&c), schema.FormatOther)
	}
	c.Items = asWritten(c.Items)
	c.Properties = maps.Clone(c.Properties)
	for name, child := range c.Properties {
		c.Properties[name] = asWritten(child)
	}
	if c.Additional != nil {
		c.Additional = &schema.AdditionalProperties{Schema: asWritten(c.Additional.Schema), Allows: c.Additional.Allows}
	}
	return &c
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
	around := defaulting.WrapAtPath(v, at.steps)
	for key, value := range map[string]string{"apiVersion": "validation/v1", "kind": "Validation"} {
		if _, ok := around[key]; !ok {
			around[key] = value
		}
	}
	if err := defaulting.Coerce(around, at.resource, nil); err != nil {
		return err
	}
	return validation.Embedded(c.ctx, around, at.resource).ToAggregate()
}
