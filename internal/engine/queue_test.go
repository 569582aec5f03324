package engine

import (
	"context"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// CNV-010: a write that has lost a race, and now waits for a conversion webhook, holds up no other one that has.
func TestSlowConversionHoldsUpNobody(t *testing.T) {
	w, c, old, now := hosts(t, 1)
	old.Name, now.Name = "h0000", "h0000"
	overtaken := false
	w.Webhook = func(ctx context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree, error) {
		if overtaken && to == old.Version { // the first writer is tried again, and waits here for the other
			overtaken = false
			w.before(func(storage.Write) { w.mustPatch(old, merging, `{"spec":{"hostPort":"two:80"}}`) })
			bounded, cancel := context.WithTimeout(w.ctx, 10*time.Second)
			defer cancel()
			if _, _, err := w.Patch(bounded, now, Patch{Type: merging, Data: []byte(`{"metadata":{"annotations":{"second":"yes"}}}`)}, w.caller); err != nil {
				t.Error(err)
			}
		}
		return c.convert(ctx, to, objects)
	}
	w.before(func(storage.Write) {
		w.mustPatch(old, merging, `{"spec":{"hostPort":"one:80"}}`)
		overtaken = true
	})
	w.mustPatch(now, merging, `{"metadata":{"annotations":{"first":"yes"}}}`)
	equal(t, "what both have left", valueAt(w.get(now), "metadata.annotations"), any(object.Tree{"first": "yes", "second": "yes"}))
}
