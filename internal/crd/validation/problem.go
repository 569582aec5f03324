package validation

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
)

// problem is a validation error. Upstream detects duplicate errors by the message.
type problem struct {
	message string
	err     *field.Error
}

// full reports whether the walk has reached a limit. The walk then ends, because the value is rejected even for a
// single problem. If ratcheting ignores all problems that were found, the whole value is unchanged, and then problems
// in the rest are ignored too.
func (w *walk) full() bool {
	return len(w.problems) >= schema.MaxProblems || w.messageBytes >= schema.MaxMessageBytes
}

// add adds a problem unless its message exists already. It must not be called on a quiet walk.
func (w *walk) add(message string, err *field.Error) {
	if w.full() || !w.spend(len(w.problems)) {
		return
	}
	for i := range w.problems {
		if w.problems[i].message == message {
			return
		}
	}
	w.messageBytes += len(err.Detail)
	if s, ok := err.BadValue.(string); ok {
		w.messageBytes += len(s)
	}
	w.problems = append(w.problems, problem{message, err})
}

// path converts at to a field path. In at, fields that are not in properties start with a dot, which path drops.
func (w *walk) path(at string) *field.Path {
	if at == "" || at == "." {
		return w.root
	}
	return w.root.Child(strings.TrimPrefix(at, "."))
}

// below returns the path of a field or item of the value at the path at. Each byte of the path counts as a step,
// because the paths of many fields below a long key can have gigabytes. It returns "" if the walk has reached a limit
// and does not check the field or item.
func (w *walk) below(at, element string) string {
	if w.full() || !w.spend(len(at)) {
		return ""
	}
	return at + element
}

// The following methods add a problem with the value at the path at, unless the walk is quiet. All of them return
// false.

func (w *walk) invalid(at string, value any, format string, args ...any) bool {
	message := fmt.Sprintf("%s in body "+format, append([]any{at}, args...)...)
	w.add(message, field.Invalid(w.path(at), value, message))
	return false
}

// composite adds a problem of a value validation. As in upstream, the error has the path of the root.
func (w *walk) composite(at, message string) bool {
	if w.quiet {
		return false
	}
	message = strconv.Quote(at) + " " + message
	w.add(message, field.Invalid(w.root, "", message))
	return false
}

func (w *walk) outOfRange(at, what string, n *schema.Node) bool {
	if w.quiet {
		return false
	}
	kind := "(default format)"
	if n.CheckedFormat().IsNumeric() {
		kind = "with format " + n.Format
	}
	message := what + " value must be of type " + n.Type + " " + kind + " in " + at
	w.add(message, field.Invalid(w.root, "", message))
	return false
}

// wrongType adds a problem with a type or format. For a wrong type, have is the type of the value. For a wrong
// format, have is the value.
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

func (w *walk) notSupported(at string, value any, e *schema.Enumeration) bool {
	if w.quiet {
		return false
	}
	printed, names := e.MessageTexts()
	w.add(at+" in body should be one of "+printed, field.NotSupported(w.path(at), value, names))
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

func (w *walk) noMatch(at, s string, p *schema.Pattern) bool {
	if w.quiet {
		return false
	}
	if _, _, err := p.Compile(); err != nil {
		return w.invalid(at, s, "should match '%s, but pattern is invalid: %s'", p.Text, err)
	}
	return w.invalid(at, s, "should match '%s'", p.Text)
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
