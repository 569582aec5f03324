package write

import (
	"context"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
)

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
