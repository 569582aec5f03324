package engine

import (
	"context"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Connect asks admission whether a caller may be connected to what runs behind an object. It returns the options of that, which
// belong to the engine from the call on, as admission has left them. Nothing is stored.
func (e *Engine) Connect(ctx context.Context, t Target, options object.Tree, c Caller) (object.Tree, error) {
	w, err := e.newWrite(ctx, t, c, opConnect)
	if err != nil {
		return nil, err
	}
	w.setVersion(t.Version.Subresource(t.Subresource).Connect.Options)
	w.change = func(*write) (object.Tree, error) { return options, nil }
	err = w.run()
	return w.desired, err
}
