package validation

import (
	"context"
	"slices"
	"testing"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// expiredContext is a context whose deadline has passed.
type expiredContext struct{ context.Context }

func (expiredContext) Err() error { return context.DeadlineExceeded }

// TestValidationEndsWithItsContext checks that a long validation stops when its context is done.
func TestValidationEndsWithItsContext(t *testing.T) {
	s, err := schema.Parse([]byte(`{"type":"object","properties":{"list":{"type":"array",
		"items":{"type":"integer"}}}}`), false)
	if err != nil {
		t.Fatal(err)
	}
	value := object.Tree{"list": slices.Repeat([]any{int64(1)}, 2*stepsPerContextCheck/stepsPerNode)}
	if errs := Values(context.Background(), s, value, nil); len(errs) > 0 {
		t.Error(errs)
	}
	if errs := Values(expiredContext{context.Background()}, s, value, nil); len(errs) == 0 {
		t.Error("validation did not check the context")
	}
}

// FuzzQuietWalk checks that the walk without errors and the walk with errors agree about the validity of each object.
func FuzzQuietWalk(f *testing.F) {
	f.Add([]byte(`{"type":"object","properties":{"l":{"type":"array","items":{"x-kubernetes-int-or-string":true,
		"anyOf":[{"type":"integer"},{"not":{"multipleOf":0.1}}]}}},"additionalProperties":false}`),
		[]byte(`{"l":[{"a":1,"b":2.5},null,3]}`))
	f.Fuzz(func(t *testing.T, js, value []byte) {
		s, err := schema.Parse(js, false)
		if err != nil || s.Root == nil {
			return
		}
		tree, _, err := object.DecodeJSON(value)
		if err != nil {
			return
		}
		quiet := walk{ctx: t.Context(), quiet: true}
		full := walk{ctx: t.Context()}
		if valid := quiet.check(tree, s.Root, "", nil); valid != full.check(tree, s.Root, "", nil) {
			t.Fatalf("valid: %t, but %v", valid, full.problems)
		}
	})
}
