package conversion

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/crd/cel"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// A CRD can declare the conversion between its versions in an annotation (resource.ConversionAnnotation). The
// annotation is a list of conversions between the storage version and another version. A field without an entry is
// copied if both schemas have it. If an expression reads a field that is missing in an object, the field that it
// computes is omitted.

// declaredConversion is an entry of the annotation.
type declaredConversion struct {
	From   string          `json:"from"`
	To     string          `json:"to"`
	Fields []declaredField `json:"fields"`
}

type declaredField struct {
	Path  string `json:"path"`  // path of the computed field in To
	Value string `json:"value"` // CEL expression in which self is the object at From
}

// versionPair identifies a conversion.
type versionPair struct{ from, to string }

// declaration is the compiled annotation.
type declaration struct {
	conversions map[versionPair][]*cel.Derivation
	err         error // if set, every conversion fails with this error
}

// declarationOf returns the declaration of a kind, or nil if it has none.
func declarationOf(d *resource.Definition) *declaration {
	if d.Conversion().Declared == "" {
		return nil
	}
	return d.Custom.Compiled.Get(func() any {
		c := compiler{definition: d, stored: true}
		c.compile()
		if err := c.errs.ToAggregate(); err != nil {
			c.result.err = fmt.Errorf("compile annotation %s of the CustomResourceDefinition: %w",
				resource.ConversionAnnotation, err)
		}
		return &c.result
	}).(*declaration)
}

// trivial reports whether the declaration computes no field in a conversion between from and to.
func (c *declaration) trivial(from, to *resource.Version) bool {
	storage := versionName(to.Definition.Storage)
	return c.err == nil && (from == nil || len(c.conversions[versionPair{versionName(from), storage}]) == 0) &&
		len(c.conversions[versionPair{storage, versionName(to)}]) == 0
}

func versionName(v *resource.Version) string { return v.GroupVersion.Version }

// convert converts t through the storage version. t is not modified, and the result shares no memory with it.
func (c *declaration) convert(ctx context.Context, t object.Tree, from, to *resource.Version) (object.Tree, error) {
	budget := int64(celconfig.RuntimeCELCostBudget)
	t = object.Copy(t)
	steps := []*resource.Version{to.Definition.Storage, to}
	if from == nil {
		from = to.Definition.Storage
	}
	for _, next := range steps {
		if from == next {
			continue
		}
		err := c.err
		if err == nil {
			err = c.step(ctx, t, from, next, &budget)
		}
		if err != nil {
			return nil, fmt.Errorf("convert %s %q from %s to %s: %w", to.Definition.Names.Kind, nameOf(t),
				from.APIVersion, next.APIVersion, err)
		}
		from = next
	}
	t["apiVersion"], t["kind"] = to.APIVersion, to.Definition.Names.Kind
	return t, nil
}

func nameOf(t object.Tree) string {
	return strings.TrimPrefix(object.Namespace(t)+"/"+object.Name(t), "/")
}

// step converts t in place from one version to another, one of which is the storage version.
func (c *declaration) step(ctx context.Context, t object.Tree, from, to *resource.Version, budget *int64) error {
	s, err := to.Schema()
	if err != nil {
		return err
	}
	fields := c.conversions[versionPair{versionName(from), versionName(to)}]
	values := make([]any, len(fields))
	found := make([]bool, len(fields))
	for i, f := range fields {
		if values[i], found[i], err = f.Value(ctx, t, budget); err != nil {
			return fmt.Errorf("%s: %w", crd.PathText(f.Target), err)
		}
	}
	for i, f := range fields {
		setField(t, f.Target, values[i], found[i])
	}
	t["apiVersion"] = to.APIVersion
	s.Prune(t)
	return nil
}

// setField sets the field at path to v. If set is false, it deletes the field.
func setField(t object.Tree, path []string, v any, set bool) {
	for _, name := range path[:len(path)-1] {
		below, ok := t[name].(object.Tree)
		if !ok && !set {
			return
		}
		if !ok {
			below = object.Tree{}
			t[name] = below
		}
		t = below
	}
	if last := path[len(path)-1]; set {
		t[last] = v
	} else {
		delete(t, last)
	}
}

// compiler compiles the annotation of a kind.
type compiler struct {
	definition *resource.Definition
	stored     bool
	result     declaration
	costs      []Cost
	budget     int64 // CEL cost budget for all samples
	tries      int   // number of samples so far
	errs       field.ErrorList
}

// Cost is the estimated maximum cost of one expression.
type Cost struct {
	Path *field.Path
	Cost uint64
}

// annotation returns the field path of the annotation, for errors.
func annotation() *field.Path {
	return field.NewPath("metadata", "annotations").Key(resource.ConversionAnnotation)
}

func (c *compiler) compile() {
	c.result.conversions = map[versionPair][]*cel.Derivation{}
	js := c.definition.Custom.Conversion.Declared
	text := object.NewCursor([]byte(js)).Text()
	var ways []declaredConversion
	if err := yaml.UnmarshalStrict([]byte(text), &ways); err != nil {
		c.errs = append(c.errs, field.Invalid(annotation(), text,
			"must be a list of {from, to, fields: [{path, value}]}: "+err.Error()))
		return
	}
	for i, w := range ways {
		path := annotation().Index(i)
		from, to := c.version(w.From, path.Child("from")), c.version(w.To, path.Child("to"))
		key := versionPair{w.From, w.To}
		_, exists := c.result.conversions[key]
		switch storage := c.definition.Storage; {
		case from == nil || to == nil:
		case from == to || from != storage && to != storage:
			c.errs = append(c.errs, field.Invalid(path, w.From+" to "+w.To,
				"must be between the storage version "+versionName(storage)+" and another version"))
		case exists:
			c.errs = append(c.errs, field.Duplicate(path, w.From+" to "+w.To))
		default:
			c.result.conversions[key] = c.fields(w.Fields, from, to, path.Child("fields"))
		}
	}
}

func (c *compiler) version(name string, path *field.Path) *resource.Version {
	var names []string
	for _, v := range c.definition.Versions {
		if versionName(v) == name {
			return v
		}
		names = append(names, versionName(v))
	}
	c.errs = append(c.errs, field.NotSupported(path, name, names))
	return nil
}

func (c *compiler) fields(all []declaredField, from, to *resource.Version,
	path *field.Path) (out []*cel.Derivation) {
	a, err := from.Schema()
	b, toErr := to.Schema()
	if err != nil || toErr != nil {
		c.errs = append(c.errs, field.Invalid(path, "", "both versions need a schema"))
		return nil
	}
	for i, f := range all {
		at := path.Index(i)
		target, problem := target(f.Path, out)
		if problem != "" {
			c.errs = append(c.errs, field.Invalid(at.Child("path"), f.Path, problem))
			continue
		}
		d, err := cel.NewDerivation(a.Schema, b.Schema, f.Value, target, c.stored)
		if err != nil {
			c.errs = append(c.errs, field.Invalid(at.Child("value"), f.Value, err.Error()))
			continue
		}
		out = append(out, d)
		c.costs = append(c.costs, Cost{at.Child("value"), d.Cost})
	}
	return out
}

// target parses the path of a computed field. The field must not overlap with a field that another expression
// computes.
func target(text string, others []*cel.Derivation) (path []string, problem string) {
	rest, ok := strings.CutPrefix(text, ".")
	path = strings.Split(rest, ".")
	switch {
	case !ok || strings.Contains(rest, "..") || rest == "" || strings.HasSuffix(rest, ".") ||
		strings.HasPrefix(rest, "."):
		return nil, "must be a path of field names, such as .spec.host"
	case path[0] == "metadata" || path[0] == "apiVersion" || path[0] == "kind":
		return nil, "metadata, apiVersion and kind are never converted"
	}
	for _, o := range others {
		if n := min(len(path), len(o.Target)); strings.Join(path[:n], ".") == strings.Join(o.Target[:n], ".") {
			return nil, "overlaps with " + crd.PathText(o.Target)
		}
	}
	return path, ""
}
