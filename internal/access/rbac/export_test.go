package rbac

// Grants returns the number of grants in the index.
func (x *Index) Grants() (n int) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, list := range x.grants {
		n += len(list)
	}
	return n
}
