package schema

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Validate validates t against the whole schema in upstream's order. old is the object that t replaces, or nil on a
// create. Errors have upstream's paths and texts. Errors of fields are sorted by the names of the fields. At most
// about a thousand errors are returned. Validate calls warn with each rule failure that ratcheting ignores. warn may
// be nil. t and old must not change during the call.
func (s *Schema) Validate(ctx context.Context, t, old object.Tree, warn func(text string)) field.ErrorList {
	return s.ValidateExtensions(ctx, t, old, false, warn, s.ValidateValues(ctx, t, old))
}

// ValidateValues is the first part of Validate, the OpenAPI validation. ValidateExtensions is the second part. When
// ctx is done, ValidateValues returns early with an error.
func (s *Schema) ValidateValues(ctx context.Context, t, old object.Tree) field.ErrorList {
	return checkValues(ctx, t, s.root, nil, func() *correlation { return correlate(t, old, s.root) })
}

// ValidateStatus validates a write of the status subresource. The OpenAPI validation checks only the values below
// status.
func (s *Schema) ValidateStatus(ctx context.Context, t, old object.Tree, warn func(text string)) field.ErrorList {
	return s.ValidateExtensions(ctx, t, old, true, warn, s.ValidateStatusValues(ctx, t, old))
}

// ValidateStatusValues is the first part of ValidateStatus, the OpenAPI validation.
func (s *Schema) ValidateStatusValues(ctx context.Context, t, old object.Tree) field.ErrorList {
	status, ok := t["status"]
	if !ok || s.root == nil {
		return nil
	}
	n := s.root.properties["status"]
	return checkValues(ctx, status, n, field.NewPath("status"), func() *correlation {
		if s.nonStructural { // upstream cannot find old values with such a schema
			return nil
		}
		return &correlation{value: status, old: old["status"], n: n}
	})
}

// checkValues does OpenAPI validation with ratcheting (KEP-4008). The function old returns the correlation with the
// old value. The first walk only checks validity, because most objects are valid. If it fails, a second walk produces
// the errors.
func checkValues(ctx context.Context, v any, n *node, at *field.Path, old func() *correlation) field.ErrorList {
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
func (w *walk) value(v any, n *node, at string, c *correlation) bool {
	before, wording := len(w.problems), w.messageBytes
	if w.check(v, n, at, c) {
		return true
	}
	if !w.quiet && c.equal() {
		w.problems, w.messageBytes = w.problems[:before], wording
		return true
	}
	return false
}

// check validates all keywords of n in upstream's order.
func (w *walk) check(v any, n *node, at string, c *correlation) bool {
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

func (w *walk) null(n *node, at string) bool {
	ok := n.types == 0 || n.nullable
	if ok {
		w.matches++
	} else {
		w.wrongType(at, typeText(n), "null")
	}
	return w.enum(nil, n, at) && ok
}

// typ checks the type of a value. For a value of a wrong type, it also compares the format of n with that of the
// value, as upstream does.
func (w *walk) typ(v any, n *node, at string) bool {
	f := n.checkedFormat()
	if n.types == 0 && f == 0 {
		return true
	}
	w.matches++
	have := typeOf(v)
	if n.types&have == 0 && !numberFits(v, n.types) {
		scalar := have != isString && have != isArray
		if f != 0 && scalar && n.format != have.goFormat() {
			return w.wrongType(at, n.format, have.goFormat())
		}
		if f == 0 || scalar || n.types&(isInteger|isNumber) != 0 {
			return w.wrongType(at, typeText(n), have.String())
		}
	}
	w.matches++
	return true
}

// list checks the items, then their number.
func (w *walk) list(v []any, n *node, at string, c *correlation) bool {
	w.matches += 2
	ok := true
	if n.items != nil {
		for i := range v {
			below := ""
			if !w.quiet {
				below = w.below(at, "["+strconv.Itoa(i)+"]")
			}
			if !w.value(v[i], n.items, below, c.index(i)) {
				if w.quiet {
					return false
				}
				ok = false
			}
		}
	}
	size := int64(len(v))
	if n.checks != nil && n.checks.minItems != nil && size < *n.checks.minItems {
		ok = w.tooFew(at, size, *n.checks.minItems, "items")
	}
	if n.maxItems != nil && size > *n.maxItems {
		ok = w.tooMany(at, size, *n.maxItems, "items")
	}
	return ok
}

// object checks the number of fields, the additional properties, the properties, and the required fields, in this
// order.
func (w *walk) object(t object.Tree, n *node, at string, c *correlation) bool {
	w.matches++
	ok := true
	size := int64(len(t))
	if n.checks != nil && n.checks.minProperties != nil && size < *n.checks.minProperties {
		ok = w.tooFew(at, size, *n.checks.minProperties, "properties")
	}
	if n.maxProperties != nil && size > *n.maxProperties {
		ok = w.tooMany(at, size, *n.maxProperties, "properties")
	}
	if w.quiet {
		return ok && hasAll(t, n.required) && w.quietFields(t, n)
	}
	ok = w.fields(t, n, at, c) && ok
	for _, name := range n.required {
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

func (w *walk) quietFields(t object.Tree, n *node) bool {
	if len(n.properties) == 0 && n.additional == nil {
		return true
	}
	for name, v := range t {
		child, known := n.properties[name]
		if !known && n.additional != nil {
			if !n.additional.allows {
				return false
			}
			child = n.additional.schema
		}
		if child != nil && !w.check(v, child, "", nil) {
			return false
		}
	}
	return true
}

// fields does the same as quietFields, but in sorted order and with paths for errors.
func (w *walk) fields(t object.Tree, n *node, at string, c *correlation) bool {
	ok := true
	names := slices.Sorted(maps.Keys(t))
	for _, name := range names {
		if _, known := n.properties[name]; known || n.additional == nil {
			continue
		}
		if !n.additional.allows {
			ok = w.forbidden(at, name)
		} else if n.additional.schema != nil {
			ok = w.value(t[name], n.additional.schema, w.below(at, "."+name), c.field(name, at)) && ok
		}
	}
	for _, name := range names {
		child, known := n.properties[name]
		if !known {
			continue
		}
		below := name
		if at != "" {
			below = w.below(at, "."+name)
		}
		ok = w.value(t[name], child, below, c.field(name, at)) && ok
	}
	return ok
}

// field returns the correlation of a field. It returns nil for apiVersion and kind of the whole object, because
// ratcheting never applies to them.
func (c *correlation) field(name, at string) *correlation {
	if at == "" && (name == "kind" || name == "apiVersion") {
		return nil
	}
	return c.key(name)
}
