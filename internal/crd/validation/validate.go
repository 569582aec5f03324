// Package validation validates objects against the OpenAPI keywords and the x-kubernetes extensions of a schema. The
// rules of x-kubernetes-validations are in package cel.
package validation

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd/ratchet"
	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// Values validates t against the OpenAPI keywords of the schema in upstream's order. old is the object that t
// replaces, or nil on a create. Errors have upstream's paths and texts. Errors of fields are sorted by the names of
// the fields. At most about a thousand errors are returned. When ctx is done, Values returns early with an error. t
// and old must not change during the call.
func Values(ctx context.Context, s *schema.Schema, t, old object.Tree) field.ErrorList {
	return Value(ctx, t, s.Root, nil, func() *ratchet.Correlation { return ratchet.Correlate(t, old, s.Root) })
}

// StatusValues does the same as Values for a write of the status subresource. It checks only the values below status.
func StatusValues(ctx context.Context, s *schema.Schema, t, old object.Tree) field.ErrorList {
	status, ok := t["status"]
	if !ok || s.Root == nil {
		return nil
	}
	n := s.Root.Properties["status"]
	return Value(ctx, status, n, field.NewPath("status"), func() *ratchet.Correlation {
		if s.NonStructural { // upstream cannot find old values with such a schema
			return nil
		}
		return &ratchet.Correlation{Value: status, Old: old["status"], N: n}
	})
}

// Value does the OpenAPI validation with ratcheting (KEP-4008). The function old returns the correlation with the
// old value. The first walk only checks validity, because most objects are valid. If it fails, a second walk produces
// the errors.
func Value(ctx context.Context, v any, n *schema.Node, at *field.Path,
	old func() *ratchet.Correlation) field.ErrorList {
	if n == nil {
		return nil
	}
	quiet := walk{ctx: ctx, quiet: true}
	switch ok := quiet.check(v, n, "", nil); {
	case !quiet.spend(0):
		return field.ErrorList{tooComplex(at)}
	case ok:
		return nil
	}
	w := walk{ctx: ctx, root: at}
	w.value(v, n, "", old())
	var errs field.ErrorList
	for _, p := range w.problems {
		errs = append(errs, p.err)
	}
	if !w.spend(0) {
		errs = append(errs, tooComplex(at))
	}
	return errs
}

// walk validates a value against its schema. A quiet walk produces no paths and errors, and stops at the first
// problem. Each check reports whether the value is valid.
type walk struct {
	ctx          context.Context
	quiet        bool
	root         *field.Path
	problems     []problem
	messageBytes int // total size of the messages
	steps        int // steps used
	matches      int // number of passed checks, for anyOf and oneOf
}

// value checks v. It drops the errors if v equals its old value.
func (w *walk) value(v any, n *schema.Node, at string, c *ratchet.Correlation) bool {
	before, wording := len(w.problems), w.messageBytes
	if w.check(v, n, at, c) {
		return true
	}
	if !w.quiet && c.Equal() {
		w.problems, w.messageBytes = w.problems[:before], wording
		return true
	}
	return false
}

// check validates all keywords of n in upstream's order.
func (w *walk) check(v any, n *schema.Node, at string, c *ratchet.Correlation) bool {
	if !w.spend(stepsPerNode) || !w.quiet && w.full() {
		return false
	}
	if v == nil {
		return w.null(n, at)
	}
	ok := w.typ(v, n, at)
	if ok || !w.quiet {
		ok = w.valueValidations(v, n, at) && ok
	}
	if !ok && w.quiet {
		return false
	}
	switch v := v.(type) {
	case string:
		ok = w.text(v, n, at) && ok
	case int64:
		ok = w.number(number{i: v, whole: true}, n, at) && ok
	case float64:
		ok = w.number(number{f: v}, n, at) && ok
	case []any:
		ok = w.list(v, n, at, c) && ok
	}
	ok = w.enum(v, n, at) && ok
	if t, is := v.(object.Tree); is && (ok || !w.quiet) {
		ok = w.object(t, n, at, c) && ok
	}
	w.matches += 2
	return ok
}

func (w *walk) null(n *schema.Node, at string) bool {
	ok := n.Types == 0 || n.Nullable
	if ok {
		w.matches++
	} else {
		w.wrongType(at, schema.TypeText(n), "null")
	}
	return w.enum(nil, n, at) && ok
}

// typ checks the type of a value. For a value of a wrong type, it also compares the format of n with that of the
// value, as upstream does.
func (w *walk) typ(v any, n *schema.Node, at string) bool {
	f := n.CheckedFormat()
	if n.Types == 0 && f == 0 {
		return true
	}
	w.matches++
	have := schema.TypeOf(v)
	if n.Types&have == 0 && !schema.NumberFits(v, n.Types) {
		scalar := have != schema.String && have != schema.Array
		if f != 0 && scalar && n.Format != have.GoFormat() {
			return w.wrongType(at, n.Format, have.GoFormat())
		}
		if f == 0 || scalar || n.Types&(schema.Integer|schema.Number) != 0 {
			return w.wrongType(at, schema.TypeText(n), have.String())
		}
	}
	w.matches++
	return true
}

// list checks the items, then their number.
func (w *walk) list(v []any, n *schema.Node, at string, c *ratchet.Correlation) bool {
	w.matches += 2
	ok := true
	if n.Items != nil {
		for i := range v {
			below := ""
			if !w.quiet {
				below = w.below(at, "["+strconv.Itoa(i)+"]")
			}
			if !w.value(v[i], n.Items, below, c.Index(i)) {
				if w.quiet {
					return false
				}
				ok = false
			}
		}
	}
	size := int64(len(v))
	if n.Checks != nil && n.Checks.MinItems != nil && size < *n.Checks.MinItems {
		ok = w.tooFew(at, size, *n.Checks.MinItems, "items")
	}
	if n.MaxItems != nil && size > *n.MaxItems {
		ok = w.tooMany(at, size, *n.MaxItems, "items")
	}
	return ok
}

// object checks the number of fields, the additional properties, the properties, and the required fields, in this
// order.
func (w *walk) object(t object.Tree, n *schema.Node, at string, c *ratchet.Correlation) bool {
	w.matches++
	ok := true
	size := int64(len(t))
	if n.Checks != nil && n.Checks.MinProperties != nil && size < *n.Checks.MinProperties {
		ok = w.tooFew(at, size, *n.Checks.MinProperties, "properties")
	}
	if n.MaxProperties != nil && size > *n.MaxProperties {
		ok = w.tooMany(at, size, *n.MaxProperties, "properties")
	}
	if w.quiet {
		return ok && hasAll(t, n.Required) && w.quietFields(t, n)
	}
	ok = w.fields(t, n, at, c) && ok
	for _, name := range n.Required {
		if _, has := t[name]; !has {
			ok = w.required(at + "." + name)
		}
	}
	return ok
}

func hasAll(t object.Tree, names []string) bool {
	for _, name := range names {
		if _, ok := t[name]; !ok {
			return false
		}
	}
	return true
}

func (w *walk) quietFields(t object.Tree, n *schema.Node) bool {
	if len(n.Properties) == 0 && n.Additional == nil {
		return true
	}
	for name, v := range t {
		child, known := n.Properties[name]
		if !known && n.Additional != nil {
			if !n.Additional.Allows {
				return false
			}
			child = n.Additional.Schema
		}
		if child != nil && !w.check(v, child, "", nil) {
			return false
		}
	}
	return true
}

// fields does the same as quietFields, but in sorted order and with paths for errors.
func (w *walk) fields(t object.Tree, n *schema.Node, at string, c *ratchet.Correlation) bool {
	ok := true
	names := slices.Sorted(maps.Keys(t))
	for _, name := range names {
		if _, known := n.Properties[name]; known || n.Additional == nil {
			continue
		}
		if !n.Additional.Allows {
			ok = w.forbidden(at, name)
		} else if n.Additional.Schema != nil {
			ok = w.value(t[name], n.Additional.Schema, w.below(at, "."+name), correlated(c, name, at)) && ok
		}
	}
	for _, name := range names {
		child, known := n.Properties[name]
		if !known {
			continue
		}
		below := name
		if at != "" {
			below = w.below(at, "."+name)
		}
		ok = w.value(t[name], child, below, correlated(c, name, at)) && ok
	}
	return ok
}

// correlated returns the correlation of a field. It returns nil for apiVersion and kind of the whole object, because
// ratcheting never applies to them.
func correlated(c *ratchet.Correlation, name, at string) *ratchet.Correlation {
	if at == "" && (name == "kind" || name == "apiVersion") {
		return nil
	}
	return c.Key(name)
}
