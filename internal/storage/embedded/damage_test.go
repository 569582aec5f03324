package embedded

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// A store whose engine has failed may be tried again; one in which damage has been found may not.
func TestDamageIsNotPassing(t *testing.T) {
	o := Options{Health: &Health{}}
	o.Now, o.Logger = time.Now, slog.New(slog.DiscardHandler)
	l := newDisk(o, vfs.NewMem(), "d", nil)
	l.current.fail(errors.New("the disk failed"))
	write := []*storage.Event{{Revision: 1, Key: "/a", Record: &storage.Record{Key: "/a", Value: []byte("a")}}}
	if err := l.Append(t.Context(), write); !errors.Is(err, storage.ErrUnavailable) {
		t.Fatal(err)
	}
	l.install(l.current, l.damage("the index", nil))
	for what, err := range map[string]error{
		"a write":            l.Append(t.Context(), write),
		"a look at the past": l.useHistory(func(*engine) error { return nil }),
	} {
		if damage := (*DamageError)(nil); !errors.As(err, &damage) || errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
