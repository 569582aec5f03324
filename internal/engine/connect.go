package engine

import (
	"context"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Connect runs admission for a connection to the target's subresource, such as exec. It stores nothing. It takes
// ownership of options and returns them with the changes by admission.
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
