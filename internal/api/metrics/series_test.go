package metrics

import (
	"sync/atomic"
	"testing"

	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/fixture"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// TestSeriesOfUnservedKind checks that the server stores no series of a kind that is not served.
func TestSeriesOfUnservedKind(t *testing.T) {
	m := New(fixture.Open(t, kinds.Config{}).Engine, new(atomic.Int64), nil)
	for plural, want := range map[string]int{"crontabs": 0, "pods": 1} {
		m.Observe(&request.Request{Kind: &resource.Version{}, Status: 200,
			Path: request.Path{Verb: request.VerbGet, Resource: true, Version: "v1", Plural: plural, Name: "a"}})
		stored := 0
		for k := range m.series {
			if k.plural == plural {
				stored++
			}
		}
		if stored != want {
			t.Errorf("got %d stored series of %s, want %d", stored, plural, want)
		}
	}
}
