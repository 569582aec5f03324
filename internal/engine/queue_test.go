package engine

import (
	"context"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// TestSlowConversionDoesNotBlockQueue checks that a write that waits for a conversion webhook after a conflict does
// not block the retries of other writes (CNV-010).
func TestSlowConversionDoesNotBlockQueue(t *testing.T) {
	f, c, old, now := newHostsFixture(t, 1)
	old.Name, now.Name = "h0000", "h0000"
	conflicted := false
	f.Webhook = func(ctx context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree, error) {
		if conflicted && to == old.Version { // the first write is being retried: it waits here for the second write
			conflicted = false
			f.raceBeforeCommit(func(storage.Write) { f.mustPatch(old, mergePatch, `{"spec":{"hostPort":"two:80"}}`) })
			bounded, cancel := context.WithTimeout(f.ctx, 10*time.Second)
			defer cancel()
			if _, _, err := f.Patch(bounded, now, verb.Patch{Type: mergePatch,
				Data: []byte(`{"metadata":{"annotations":{"second":"yes"}}}`)}, f.caller); err != nil {
				t.Error(err)
			}
		}
		return c.convert(ctx, to, objects)
	}
	f.raceBeforeCommit(func(storage.Write) {
		f.mustPatch(old, mergePatch, `{"spec":{"hostPort":"one:80"}}`)
		conflicted = true
	})
	f.mustPatch(now, mergePatch, `{"metadata":{"annotations":{"first":"yes"}}}`)
	equal(t, "annotations of both", valueAt(f.get(now), "metadata.annotations"),
		any(object.Tree{"first": "yes", "second": "yes"}))
}
