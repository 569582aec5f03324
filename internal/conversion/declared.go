package conversion

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/schema"
)

// A CRD may declare in an annotation how its versions follow from each other (resource.ConversionAnnotation): a list of
// ways between the storage version and another one. What a way does not mention is carried over where both schemas
// have it. An expression that reads a field that the object does not have leaves its own field out.

// way is an entry of the annotation.
type way struct {
	From   string     `json:"from"`
	To     string     `json:"to"`
	Fields []wayField `json:"fields"`
}

type wayField struct {
	Path  string `json:"path"`  // of a field of To
	Value string `json:"value"` // a CEL expression; self is an object at From
}

// route names a way.
type route struct{ from, to string }

// declaration is the annotation, compiled.
type declaration struct {
	ways map[route][]*schema.Derivation
	err  error // for every conversion; a server that wrote the CRD would not have let it in
}

// declared is the declaration of a kind; nil if it has none.
func declared(d *resource.Definition) *declaration {
	if d.Custom == nil || d.Custom.Conversion.Declared == "" {
		return nil
	}
	return d.Custom.Compiled.Get(func() any {
		c := compiler{definition: d, stored: true}
		c.compile()
		if err := c.errs.ToAggregate(); err != nil {
			c.result.err = fmt.Errorf("the annotation %s of the CustomResourceDefinition: %w", resource.ConversionAnnotation, err)
		}
		return &c.result
	}).(*declaration)
}

// trivial reports whether from and to differ in nothing that the declaration computes.
func (c *declaration) trivial(from, to *resource.Version) bool {
	hub := versionName(to.Definition.Storage)
	return c.err == nil && (from == nil || len(c.ways[route{versionName(from), hub}]) == 0) && len(c.ways[route{hub, versionName(to)}]) == 0
}

func versionName(v *resource.Version) string { return v.GroupVersion.Version }

// convert translates t by way of the storage version. t is not modified, and the result shares nothing with it.
func (c *declaration) convert(ctx context.Context, t object.Tree, from, to *resource.Version) (object.Tree, error) {
	budget := int64(celconfig.RuntimeCELCostBudget)
	t = object.Copy(t)
	hops := []*resource.Version{to.Definition.Storage, to}
	if from == nil {
		from = to.Definition.Storage
	}
	for _, next := range hops {
		if from == next {
			continue
		}
		err := c.err
		if err == nil {
			err = c.hop(ctx, t, from, next, &budget)
		}
		if err != nil {
			return nil, fmt.Errorf("conversion of %s %q from %s to %s: %w", to.Definition.Names.Kind, nameOf(t), from.APIVersion, next.APIVersion, err)
		}
		from = next
	}
	t["apiVersion"], t["kind"] = to.APIVersion, to.Definition.Names.Kind
	return t, nil
}

func nameOf(t object.Tree) string {
	return strings.TrimPrefix(object.Namespace(t)+"/"+object.Name(t), "/")
}

// hop makes t, an object at one version, one at the next.
func (c *declaration) hop(ctx context.Context, t object.Tree, from, to *resource.Version, budget *int64) error {
	s, err := to.Schema()
	if err != nil {
		return err
	}
	fields := c.ways[route{versionName(from), versionName(to)}]
	values := make([]any, len(fields))
	found := make([]bool, len(fields))
	for i, f := range fields {
		if values[i], found[i], err = f.Value(ctx, t, budget); err != nil {
			return fmt.Errorf("%s: %w", schema.PathText(f.Target), err)
		}
	}
	for i, f := range fields {
		put(t, f.Target, values[i], found[i])
	}
	t["apiVersion"] = to.APIVersion
	s.Prune(t)
	return nil
}

// put sets the field at path, or deletes it if it is not there.
func put(t object.Tree, path []string, v any, there bool) {
	for _, name := range path[:len(path)-1] {
		below, ok := t[name].(object.Tree)
		if !ok && !there {
			return
		}
		if !ok {
			below = object.Tree{}
			t[name] = below
		}
		t = below
	}
	if last := path[len(path)-1]; there {
		t[last] = v
	} else {
		delete(t, last)
	}
}

// compiler reads the annotation of a kind.
type compiler struct {
	definition *resource.Definition
	stored     bool
	result     declaration
	costs      []Cost
	budget     int64 // for all samples together
	tries      int   // samples
	errs       field.ErrorList
}

// Cost is what one expression may cost at most, by its estimate.
type Cost struct {
	Path *field.Path
	Cost uint64
}

// annotation is where errors lie.
func annotation() *field.Path {
	return field.NewPath("metadata", "annotations").Key(resource.ConversionAnnotation)
}

func (c *compiler) compile() {
	c.result.ways = map[route][]*schema.Derivation{}
	js := c.definition.Custom.Conversion.Declared
	text := object.NewCursor([]byte(js)).Text()
	var ways []way
	if err := yaml.UnmarshalStrict([]byte(text), &ways); err != nil {
		c.errs = append(c.errs, field.Invalid(annotation(), text, "must be a list of {from, to, fields: [{path, value}]}: "+err.Error()))
		return
	}
	for i, w := range ways {
		path := annotation().Index(i)
		from, to := c.version(w.From, path.Child("from")), c.version(w.To, path.Child("to"))
		key := route{w.From, w.To}
		_, twice := c.result.ways[key]
		switch hub := c.definition.Storage; {
		case from == nil || to == nil:
		case from == to || from != hub && to != hub:
			c.errs = append(c.errs, field.Invalid(path, w.From+" to "+w.To, "must be between the storage version "+versionName(hub)+" and another one"))
		case twice:
			c.errs = append(c.errs, field.Duplicate(path, w.From+" to "+w.To))
		default:
			c.result.ways[key] = c.fields(w.Fields, from, to, path.Child("fields"))
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

func (c *compiler) fields(all []wayField, from, to *resource.Version, path *field.Path) (out []*schema.Derivation) {
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
		d, err := schema.NewDerivation(a, b, f.Value, target, c.stored)
		if err != nil {
			c.errs = append(c.errs, field.Invalid(at.Child("value"), f.Value, err.Error()))
			continue
		}
		out = append(out, d)
		c.costs = append(c.costs, Cost{at.Child("value"), d.Cost})
	}
	return out
}

// target reads the path of a field that none of others computes, nor one above or below it.
func target(text string, others []*schema.Derivation) (path []string, problem string) {
	rest, ok := strings.CutPrefix(text, ".")
	path = strings.Split(rest, ".")
	switch {
	case !ok || strings.Contains(rest, "..") || rest == "" || strings.HasSuffix(rest, ".") || strings.HasPrefix(rest, "."):
		return nil, "must be a path of field names, as in .spec.host"
	case path[0] == "metadata" || path[0] == "apiVersion" || path[0] == "kind":
		return nil, "metadata, apiVersion and kind are never converted"
	}
	for _, o := range others {
		if n := min(len(path), len(o.Target)); strings.Join(path[:n], ".") == strings.Join(o.Target[:n], ".") {
			return nil, "overlaps with " + schema.PathText(o.Target)
		}
	}
	return path, ""
}
