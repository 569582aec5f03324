package catalog

import "iter"

// PerGroup holds a value for each group of a catalog. It is immutable. The next PerGroup shares the values of
// groups that have not changed.
type PerGroup[T any] struct {
	Catalog *Catalog
	values  []T // parallel to Catalog.groups
}

// ForGroups returns the values for the groups of c. It copies the values of unchanged groups from last, which may
// be nil. For each changed group, it calls compute with the previous value and the group. If a group is no longer
// served, the argument group is nil, and compute must return the zero T.
func ForGroups[T any](c *Catalog, last *PerGroup[T], compute func(previous T, group *Group) T) *PerGroup[T] {
	next := &PerGroup[T]{Catalog: c, values: make([]T, len(c.groups))}
	if last == nil {
		last = &PerGroup[T]{Catalog: &Catalog{}}
	}
	var none T
	old, at := last.Catalog.groups, 0
	for i, g := range c.groups {
		if at < len(old) && old[at].value == g.value {
			next.values[i] = last.values[at]
			at++
			continue
		}
		for ; at < len(old) && old[at].name < g.name; at++ {
			compute(last.values[at], nil)
		}
		if at < len(old) && old[at].name == g.name {
			next.values[i] = last.values[at]
			if old[at].value != g.value {
				next.values[i] = compute(last.values[at], g.value.discovery())
			}
			at++
		} else {
			next.values[i] = compute(none, g.value.discovery())
		}
	}
	for _, previous := range last.values[at:] {
		compute(previous, nil)
	}
	return next
}

// All yields the value of each group, in the order of discovery.
func (p *PerGroup[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for i := range p.Catalog.inOrder() {
			if !yield(p.values[i]) {
				return
			}
		}
	}
}

// Find returns the value of the group with a name, or the zero T if the group is not served.
func (p *PerGroup[T]) Find(name string) (value T) {
	if i, ok := p.Catalog.groups.find(name); ok {
		value = p.values[i]
	}
	return value
}
