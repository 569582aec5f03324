package rbac

// Grants is how many there are in the index.
func (x *Index) Grants() (n int) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, list := range x.grants {
		n += len(list)
	}
	return n
}
