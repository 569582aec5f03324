package conformance_test

// known is a difference that docs/compatibility.md lists.
type known struct {
	row  string // how its row there begins
	of   func(r request, d difference) bool
	used bool
}

func knownDifferences() []*known {
	return []*known{}
}
