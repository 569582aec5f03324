package write

import (
	"context"
	"testing"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
)

// TestCatchUpWaits checks that a write does not continue after a conflict before the conflicting write is visible.
func TestCatchUpWaits(t *testing.T) {
	store, err := embedded.Open(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	wr := New(&read.Reader{Views: record.New(record.Config{Store: store})}, nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if wr.catchUp(ended, &storage.ConflictError{Revision: store.Head().Revision() + 1}) == nil {
		t.Error("catchUp returned before the conflicting write was visible")
	}
}
