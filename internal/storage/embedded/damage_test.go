package embedded

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/engine"
)

// TestDamageIsPermanent checks the errors of operations. On a store whose engine has failed, they return
// ErrUnavailable, and the caller can retry. On a damaged store, they return a DamageError, which is permanent.
func TestDamageIsPermanent(t *testing.T) {
	o := Options{Health: &Health{}}
	o.Now, o.Logger = time.Now, slog.New(slog.DiscardHandler)
	l := newDisk(o, vfs.NewMem(), "d", nil)
	l.current.Fail(errors.New("the disk failed"))
	write := []*storage.Event{{Revision: 1, Key: "/a", Record: &storage.Record{Key: "/a", Value: []byte("a")}}}
	if err := l.Append(t.Context(), write); !errors.Is(err, storage.ErrUnavailable) {
		t.Fatal(err)
	}
	l.install(l.current, l.damage("the index", nil))
	for method, err := range map[string]error{
		"Append":     l.Append(t.Context(), write),
		"useHistory": l.useHistory(func(*engine.Engine) error { return nil }),
	} {
		if damage := (*engine.DamageError)(nil); !errors.As(err, &damage) || errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("%s: got %v, want a DamageError", method, err)
		}
	}
}
