package write

import (
	"context"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/strategy"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
)

// Create stores a new object, or evaluates a review.
func (wr *Writer) Create(ctx context.Context, t verb.Target, b verb.Body, c verb.Caller) (record.Object, error) {
	t.Name = "" // the body names the object
	kind := opStore
	if t.Version.Definition.Behavior.Review != nil {
		kind = opReview
	}
	w, err := wr.newWrite(ctx, t, c, kind)
	if err != nil {
		return record.Object{}, err
	}
	w.CreateOnly, w.change = true, bodyChange(b)
	if err := w.run(); err != nil {
		return record.Object{}, err
	}
	return w.result, nil
}

// Update replaces an object or its subresource. created reports whether the PUT has created the object.
func (wr *Writer) Update(
	ctx context.Context, t verb.Target, b verb.Body, c verb.Caller,
) (o record.Object, created bool, err error) {
	w, err := wr.newWrite(ctx, t, c, opStore)
	if err != nil {
		return record.Object{}, false, err
	}
	if t.Subresource == "scale" {
		o, err = w.updateScale(b)
		return o, false, err
	}
	w.change, w.wantUID = bodyChange(b), string(object.UID(b.Tree))
	w.upserts = w.Def.Behavior.CreateOnUpdate && t.Subresource == ""
	if err := w.run(); err != nil {
		return record.Object{}, false, err
	}
	return w.result, w.Record == nil, nil
}

// bodyChange returns a change that replaces the whole object by the body. It decodes the body only once.
func bodyChange(b verb.Body) changeFunc {
	var accepted object.Tree
	var warned []string
	return func(w *write) (object.Tree, error) {
		if accepted == nil {
			t, err := w.decodeBody(b)
			if err != nil {
				return nil, err
			}
			if w.CreateOnly && w.kind == opStore {
				strategy.WipeSystemFields(object.EnsureMetadata(t))
			}
			accepted, warned = t, w.Warnings
			if b.Internal != nil {
				w.Typed.Decoded = b.Internal
			}
		}
		w.Warnings = warned[:len(warned):len(warned)]
		return object.ShallowCopy(accepted), nil
	}
}

// decode builds the desired object.
func (w *write) decode() (err error) {
	w.Desired, err = w.change(w)
	return err
}

// Connect runs admission for a connection to the target's subresource, such as exec. It stores nothing. It takes
// ownership of options and returns them with the changes by admission.
func (wr *Writer) Connect(ctx context.Context, t verb.Target, options object.Tree, c verb.Caller) (object.Tree, error) {
	w, err := wr.newWrite(ctx, t, c, opConnect)
	if err != nil {
		return nil, err
	}
	w.setVersion(t.Version.Subresource(t.Subresource).Connect.Options)
	w.change = func(*write) (object.Tree, error) { return options, nil }
	err = w.run()
	return w.Desired, err
}
