package etcd_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// observe is the Options.ObserveBarrier of stores that join returns.
func observe(wait time.Duration) { barriers.Add(1); waits.Add(int64(wait)) }

// The number of waits for other servers, and their total time.
var barriers, waits atomic.Int64

// join opens a store that has joined the servers of an etcd. Commits below "rules/" wait for all servers.
func join(t *testing.T, url string, applied func(context.Context, int64) error) *etcd.Store {
	t.Helper()
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{url}}, Everywhere: []string{"rules/"},
		ObserveBarrier: observe})
	if applied == nil {
		applied = func(context.Context, int64) error { return nil }
	}
	if err := s.Join(t.Context(), applied); err != nil {
		t.Fatal(err)
	}
	return s
}

// startCommit creates a key in a goroutine. The channel receives the event, or nil after an error.
func startCommit(t *testing.T, s *etcd.Store, key string) <-chan *storage.Event {
	done := make(chan *storage.Event, 1)
	go func() {
		events, err := s.Commit(t.Context(), []storage.Write{{Key: key, Value: []byte("1")}})
		if err != nil {
			t.Errorf("commit %s: %v", key, err)
			events = []*storage.Event{nil}
		}
		done <- events[0]
	}()
	return done
}

// TestEverywhere checks that a commit below Options.Everywhere returns after all joined servers have applied it, and
// that other commits do not wait.
func TestEverywhere(t *testing.T) {
	e := storagetest.StartEtcd(t)
	release, applied := make(chan struct{}), atomic.Int64{}
	a := join(t, e.URL, nil)
	b := join(t, e.URL, func(ctx context.Context, revision int64) error {
		if applied.Load() > 0 { // not for the registration
			select {
			case <-release:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		applied.Store(revision)
		return nil
	})
	put(t, a, storage.Write{Key: "other/a", Value: []byte("1")})
	done := startCommit(t, a, "rules/a")
	for a.Head().Get("rules/a") == nil || b.Head().Get("rules/a") == nil {
		<-time.After(time.Millisecond)
	}
	put(t, a, storage.Write{Key: "other/b", Value: []byte("1")})
	select {
	case <-done:
		t.Fatal("the commit has returned before the other server has applied it")
	default:
	}
	if a.Servers() != 2 {
		t.Errorf("%d servers are registered, want 2", a.Servers())
	}
	count, total := barriers.Load(), waits.Load()
	close(release)
	if got := <-done; got == nil || applied.Load() < got.Revision {
		t.Errorf("the commit %+v has returned at revision %d of the other server", got, applied.Load())
	}
	if barriers.Load() != count+1 || waits.Load() == total {
		t.Errorf("%d waits of %v were observed, want 1", barriers.Load()-count, time.Duration(waits.Load()-total))
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	put(t, a, storage.Write{Key: "rules/b", Value: []byte("1")}) // does not wait for a server that has stopped
}

// TestPartitionedMember checks a server that loses its connection to etcd. A commit below Options.Everywhere returns
// when the registration of this server has expired. From then on the server is not valid and cannot write, until it
// has connected again and has applied the commit.
func TestPartitionedMember(t *testing.T) {
	e := storagetest.StartEtcd(t)
	p := newProxy(t, e.URL)
	a, b := join(t, e.URL, nil), join(t, p.url, nil)
	if err := errors.Join(a.Valid(), b.Valid()); err != nil {
		t.Fatal(err)
	}
	p.close()
	made := put(t, a, storage.Write{Key: "rules/a", Value: []byte("1")})
	if err := b.Valid(); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("the partitioned server is valid after the commit: %v", err)
	}
	if _, err := b.Commit(t.Context(), []storage.Write{{Key: "b", Value: []byte("1")}}); !errors.Is(err,
		storage.ErrUnavailable) {
		t.Errorf("Commit on the partitioned server: %v", err)
	}
	p.open()
	for b.Valid() != nil {
		<-time.After(time.Millisecond)
	}
	if b.Head().Revision() < made.Revision || b.Head().Get("rules/a") == nil {
		t.Errorf("the server is valid at revision %d, before it has read revision %d", b.Head().Revision(),
			made.Revision)
	}
	put(t, b, storage.Write{Key: "b", Value: []byte("1")})
}

// TestBarrierMissedByWatch checks a server that has to read the whole state again, because etcd has compacted changes
// that it has not seen. It acknowledges the commits among them, while its registration stays valid.
func TestBarrierMissedByWatch(t *testing.T) {
	e := storagetest.StartEtcd(t)
	p := newProxy(t, e.URL)
	a, b := join(t, e.URL, nil), join(t, p.url, nil)
	p.close()
	done := startCommit(t, a, "rules/a")
	for a.Head().Get("rules/a") == nil {
		<-time.After(time.Millisecond)
	}
	last := put(t, a, storage.Write{Key: "other", Value: []byte("1")})
	if err := a.Compact(t.Context(), last.Revision); err != nil {
		t.Fatal(err)
	}
	p.open()
	made := <-done
	if made == nil || b.Valid() == nil && b.Head().Revision() < made.Revision {
		t.Errorf("the commit %+v has returned at revision %d of the other server", made, b.Head().Revision())
	}
}
