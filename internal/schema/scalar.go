package schema

// text reports the first problem with the length or the pattern, then a problem with the format.
func (w *walk) text(s string, n *node, at string) bool {
	w.matches++
	m := n.checks
	ok := w.spend(len(s))
	switch {
	case n.maxLength != nil && longer(s, *n.maxLength):
		ok = w.tooLong(at, *n.maxLength)
	case m == nil:
	case m.minLength != nil && shorter(s, *m.minLength):
		ok = w.tooShort(at, s, *m.minLength)
	case m.pattern != nil && !w.matchesPattern(s, m.pattern):
		ok = w.noMatch(at, s, m.pattern)
	}
	if m != nil && m.format >= textFormat {
		w.matches++
		if (ok || !w.quiet) && !m.format.valid(s) {
			ok = w.wrongType(at, n.format, s)
		}
	}
	return ok
}

func (w *walk) enum(v any, n *node, at string) bool {
	if n.checks == nil || n.checks.enum == nil {
		return true
	}
	e := n.checks.enum
	return e.has(v) || len(e.values()) == 0 || w.notSupported(at, v, e)
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
func (v number) fits(n *node) bool {
	if !v.whole {
		return inRange(v.f, n)
	}
	return n.types != isInteger || n.checkedFormat() != formatInt32 || v.i == int64(int32(v.i))
}

// number checks the range of v, then multipleOf, minimum and maximum.
func (w *walk) number(v number, n *node, at string) bool {
	w.matches += 2
	ok := v.fits(n) || w.outOfRange(at, "Checked", n)
	m := n.checks
	if m == nil || !ok && w.quiet {
		return ok
	}
	if m.multipleOf != nil {
		ok = w.multipleOf(v, n, at) && ok
	}
	if m.minimum != nil {
		ok = w.bound(v, *m.minimum, false, n, at) && ok
	}
	if m.maximum != nil {
		ok = w.bound(v, *m.maximum, true, n, at) && ok
	}
	return ok
}

// multipleOf checks multipleOf. It uses integer arithmetic if the value is an integer and the factor is in the range
// of n's type.
func (w *walk) multipleOf(v number, n *node, at string) bool {
	factor := *n.checks.multipleOf
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
func (w *walk) bound(v number, limit float64, upper bool, n *node, at string) bool {
	name, exclusive := "Minimum", n.checks.exclusiveMinimum
	if upper {
		name, exclusive = "Maximum", n.checks.exclusiveMaximum
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
