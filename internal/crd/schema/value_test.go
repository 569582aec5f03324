package schema

import (
	"slices"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TestEnumerationIndex checks that a long enumeration uses an index, with the same results as a scan.
func TestEnumerationIndex(t *testing.T) {
	values := slices.Concat([]any{"", "a", "A", "é", "12", "*", true, false, nil, int64(0), int64(1), int64(2),
		int64(-1), int64(65), int64(2147483648), int64(9223372036854775807), 0.5, 1.0, 1.5, 1e30, 65.0,
		9007199254740992.0}, []any{object.Tree{"a": int64(1)}, object.Tree{"a": 1.0}, []any{}, []any{"b"}})
	for skip := range 5 {
		e := &Enumeration{}
		for i, v := range values {
			if i%5 != skip {
				e.list = append(e.list, v)
			}
		}
		js := object.AppendJSON(nil, e.list)
		e = &Enumeration{Text: string(js)}
		e.Values()
		for _, v := range values {
			want := slices.ContainsFunc(e.list, func(allowed any) bool { return enumEqual(v, allowed) })
			if got := e.Has(v); got != want {
				t.Errorf("%T %v: %t", v, v, got)
			}
		}
	}
}
