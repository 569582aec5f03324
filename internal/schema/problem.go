package schema

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of what one walk words. What comes after is not looked at: no more is needed to refuse the value,
// and if all of it is as before, so is what was not looked at.
const (
	maxProblems = 1000
	maxWording  = 1 << 20 // bytes
)

// problem is an error and the message by which upstream tells whether it is told already.
type problem struct {
	message string
	err     *field.Error
}

// full reports whether the walk has worded all that it may.
func (w *walk) full() bool { return len(w.problems) >= maxProblems || w.wording >= maxWording }

// add is for a walk that is not quiet.
func (w *walk) add(message string, err *field.Error) {
	if w.full() || !w.spend(len(w.problems)) {
		return
	}
	for i := range w.problems {
		if w.problems[i].message == message {
			return
		}
	}
	w.wording += len(err.Detail)
	if s, ok := err.BadValue.(string); ok {
		w.wording += len(s)
	}
	w.problems = append(w.problems, problem{message, err})
}

// path is at as a field path, without the dot that leads to a field of the whole object which has no
// property.
func (w *walk) path(at string) *field.Path {
	if at == "" || at == "." {
		return w.root
	}
	return w.root.Child(strings.TrimPrefix(at, "."))
}

// below returns the path of a field or item of the value at a path. Each byte counts as a step. It returns none if the walk does not check that value: many
// fields below a long key have gigabytes of paths.
func (w *walk) below(at, element string) string {
	if w.full() || !w.spend(len(at)) {
		return ""
	}
	return at + element
}

// The following add a problem with the value at a path, unless the walk is quiet, and return false.

func (w *walk) invalid(at string, value any, format string, args ...any) bool {
	message := fmt.Sprintf("%s in body "+format, append([]any{at}, args...)...)
	w.add(message, field.Invalid(w.path(at), value, message))
	return false
}

// composite is for what has no path of its own.
func (w *walk) composite(at, message string) bool {
	if w.quiet {
		return false
	}
	message = strconv.Quote(at) + " " + message
	w.add(message, field.Invalid(w.root, "", message))
	return false
}

func (w *walk) outOfRange(at, what string, n *node) bool {
	if w.quiet {
		return false
	}
	kind := "(default format)"
	if n.checkedFormat().isNumeric() {
		kind = "with format " + n.format
	}
	message := what + " value must be of type " + n.typ + " " + kind + " in " + at
	w.add(message, field.Invalid(w.root, "", message))
	return false
}

// wrongType is told of a type or format; have is the type, or what does not fit the format.
func (w *walk) wrongType(at, want, have string) bool {
	if w.quiet {
		return false
	}
	message := fmt.Sprintf("%s in body must be of type %s: %q", at, want, have)
	w.add(message, field.TypeInvalid(w.path(at), have, message))
	return false
}

func (w *walk) required(at string) bool {
	if w.quiet {
		return false
	}
	w.add(at+" in body is required", field.Required(w.path(at), ""))
	return false
}

func (w *walk) forbidden(at, name string) bool {
	if w.quiet {
		return false
	}
	message := at + "." + name + " in body is a forbidden property"
	w.add(message, field.Invalid(w.path(at), name, message))
	return false
}

func (w *walk) notIn(at string, value any, e *enumeration) bool {
	if w.quiet {
		return false
	}
	said, names := e.wording()
	w.add(at+" in body should be one of "+said, field.NotSupported(w.path(at), value, names))
	return false
}

func (w *walk) tooLong(at string, max int64) bool {
	if w.quiet {
		return false
	}
	message := fmt.Sprintf("%s in body should be at most %d chars long", at, max)
	w.add(message, field.TooLong(w.path(at), "", int(max)))
	return false
}

func (w *walk) tooMany(at string, size, max int64, what string) bool {
	if w.quiet {
		return false
	}
	message := fmt.Sprintf("%s in body should have at most %d %s", at, max, what)
	w.add(message, field.TooMany(w.path(at), int(size), int(max)))
	return false
}

func (w *walk) tooFew(at string, size, min int64, what string) bool {
	return !w.quiet && w.invalid(at, size, "should have at least %d %s", min, what)
}

func (w *walk) tooShort(at, s string, min int64) bool {
	return !w.quiet && w.invalid(at, s, "should be at least %d chars long", min)
}

func (w *walk) noMatch(at, s string, p *pattern) bool {
	if w.quiet {
		return false
	}
	if p.err != nil {
		return w.invalid(at, s, "should match '%s, but pattern is invalid: %s'", p.text, p.err)
	}
	return w.invalid(at, s, "should match '%s'", p.text)
}

func (w *walk) notPositive(at string, factor any) bool {
	if w.quiet {
		return false
	}
	message := fmt.Sprintf("factor MultipleOf declared for %s must be positive: %v", at, factor)
	w.add(message, field.Invalid(w.path(at), factor, message))
	return false
}

func (w *walk) noMultiple(at string, factor, v any) bool {
	return !w.quiet && w.invalid(at, v, "should be a multiple of %v", factor)
}

func (w *walk) exceeds(at string, limit, v any, upper, exclusive bool) bool {
	if w.quiet {
		return false
	}
	relation := "greater than"
	if upper {
		relation = "less than"
	}
	if !exclusive {
		relation += " or equal to"
	}
	return w.invalid(at, v, "should be %s %v", relation, limit)
}
