package resource

import "iter"

// PerGroup is something that is known of each served group of a catalog. It is immutable; the next one shares what is
// known of the groups that have not changed.
type PerGroup[T any] struct {
	Catalog *Catalog
	values  []T // beside Catalog.groups
}

// ForGroups returns what is known of the groups of c. It takes over from last, which may be nil, what
// it can: look is called only for groups that last does not have as they are now, with what was known and what discovery
// says of the group; with nil for one that is no longer served, of which nothing more than the zero T may be known.
func ForGroups[T any](c *Catalog, last *PerGroup[T], look func(was T, is *Group) T) *PerGroup[T] {
	next := &PerGroup[T]{Catalog: c, values: make([]T, len(c.groups))}
	if last == nil {
		last = &PerGroup[T]{Catalog: &Catalog{}}
	}
	var none T
	old, at := last.Catalog.groups, 0
	for i, g := range c.groups {
		if at < len(old) && old[at].is == g.is {
			next.values[i] = last.values[at]
			at++
			continue
		}
		for ; at < len(old) && old[at].name < g.name; at++ {
			look(last.values[at], nil)
		}
		if at < len(old) && old[at].name == g.name {
			next.values[i] = last.values[at]
			if old[at].is != g.is {
				next.values[i] = look(last.values[at], g.is.served())
			}
			at++
		} else {
			next.values[i] = look(none, g.is.served())
		}
	}
	for _, was := range last.values[at:] {
		look(was, nil)
	}
	return next
}

// All yields what is known of each group, in the order of discovery.
func (p *PerGroup[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for i := range p.Catalog.inOrder() {
			if !yield(p.values[i]) {
				return
			}
		}
	}
}

// Find returns what is known of the group of that name; the zero T if it is not served.
func (p *PerGroup[T]) Find(name string) (known T) {
	if i, ok := p.Catalog.groups.find(name); ok {
		known = p.values[i]
	}
	return known
}
