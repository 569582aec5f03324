package validation

import (
	"math"
	"unicode/utf8"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
)

// text reports the first problem with the length or the pattern, then a problem with the format.
func (w *walk) text(s string, n *schema.Node, at string) bool {
	w.matches++
	m := n.Checks
	ok := w.spend(len(s))
	switch {
	case n.MaxLength != nil && longer(s, *n.MaxLength):
		ok = w.tooLong(at, *n.MaxLength)
	case m == nil:
	case m.MinLength != nil && shorter(s, *m.MinLength):
		ok = w.tooShort(at, s, *m.MinLength)
	case m.Pattern != nil && !w.matchesPattern(s, m.Pattern):
		ok = w.noMatch(at, s, m.Pattern)
	}
	if m != nil && m.Format >= schema.TextFormat {
		w.matches++
		if (ok || !w.quiet) && !m.Format.Valid(s) {
			ok = w.wrongType(at, n.Format, s)
		}
	}
	return ok
}

func (w *walk) matchesPattern(s string, p *schema.Pattern) bool {
	re, cost, err := p.Compile()
	return err == nil && w.spend(len(s)*cost) && re.MatchString(s)
}

func (w *walk) enum(v any, n *schema.Node, at string) bool {
	if n.Checks == nil || n.Checks.Enum == nil {
		return true
	}
	e := n.Checks.Enum
	return e.Has(v) || len(e.Values()) == 0 || w.notSupported(at, v, e)
}

// number is a JSON number, which the decoder represents as an integer or as a float.
type number struct {
	i     int64
	f     float64
	whole bool // if true, the value is i, otherwise f
}

func (v number) float() float64 {
	if v.whole {
		return float64(v.i)
	}
	return v.f
}

// fits reports whether v is in the range of n's type and format.
func (v number) fits(n *schema.Node) bool {
	if !v.whole {
		return inRange(v.f, n)
	}
	return n.Types != schema.Integer || n.CheckedFormat() != schema.FormatInt32 || v.i == int64(int32(v.i))
}

// number checks the range of v, then multipleOf, minimum and maximum.
func (w *walk) number(v number, n *schema.Node, at string) bool {
	w.matches += 2
	ok := v.fits(n) || w.outOfRange(at, "Checked", n)
	m := n.Checks
	if m == nil || !ok && w.quiet {
		return ok
	}
	if m.MultipleOf != nil {
		ok = w.multipleOf(v, n, at) && ok
	}
	if m.Minimum != nil {
		ok = w.bound(v, *m.Minimum, false, n, at) && ok
	}
	if m.Maximum != nil {
		ok = w.bound(v, *m.Maximum, true, n, at) && ok
	}
	return ok
}

// multipleOf checks multipleOf. It uses integer arithmetic if the value is an integer and the factor is in the range
// of n's type.
func (w *walk) multipleOf(v number, n *schema.Node, at string) bool {
	factor := *n.Checks.MultipleOf
	ok := inRange(factor, n) || w.outOfRange(at, "MultipleOf", n)
	if ok && v.whole {
		switch whole := int64(factor); {
		case whole <= 0:
			return w.notPositive(at, whole)
		case v.i%whole != 0:
			return w.noMultiple(at, whole, v.i)
		}
		return true
	}
	switch {
	case factor <= 0:
		return w.notPositive(at, factor)
	case !isMultiple(v.float(), factor):
		return w.noMultiple(at, factor, v.float())
	}
	return ok
}

// bound checks maximum or minimum. It uses integer arithmetic under the same conditions as multipleOf.
func (w *walk) bound(v number, limit float64, upper bool, n *schema.Node, at string) bool {
	name, exclusive := "Minimum", n.Checks.ExclusiveMinimum
	if upper {
		name, exclusive = "Maximum", n.Checks.ExclusiveMaximum
	}
	ok := inRange(limit, n) || w.outOfRange(at, name+" boundary", n)
	if ok && v.whole {
		whole := int64(limit)
		return within(v.i, whole, upper, exclusive) || w.exceeds(at, whole, v.i, upper, exclusive)
	}
	if !within(v.float(), limit, upper, exclusive) {
		return w.exceeds(at, limit, v.float(), upper, exclusive)
	}
	return ok
}

func within[T int64 | float64](v, limit T, upper, exclusive bool) bool {
	switch {
	case v == limit:
		return !exclusive
	case upper:
		return v < limit
	}
	return v > limit
}

// longer reports whether s has more than n characters.
func longer(s string, n int64) bool {
	return int64(len(s)) > n && int64(utf8.RuneCountInString(s)) > n
}

// shorter reports whether s has fewer than n characters.
func shorter(s string, n int64) bool {
	return int64(len(s)) < n || n > 0 && int64(utf8.RuneCountInString(s)) < n
}

// inRange reports whether a float is in the range of n's type and format.
func inRange(f float64, n *schema.Node) bool {
	switch n.Types {
	case schema.Integer:
		bits := 63
		if n.CheckedFormat() == schema.FormatInt32 {
			bits = 31
		}
		limit := math.Ldexp(1, bits)
		// Upstream compares the shortest decimal form of the float. That of -2⁶³ is less than -2⁶³, so upstream
		// rejects it.
		return f == math.Trunc(f) && f < limit && (f > -limit || f == -limit && bits == 31)
	case schema.Number:
		return n.CheckedFormat() != schema.FormatFloat || !math.IsInf(float64(float32(f)), 0)
	}
	return true
}

// isMultiple reports whether f is a multiple of factor, which must be positive.
func isMultiple(f, factor float64) bool {
	if factor < 1 {
		return schema.IsWhole(1 / factor * f)
	}
	return schema.IsWhole(f / factor)
}
