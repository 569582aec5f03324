package etcd_test

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// observe is the Options.ObserveBarrier of stores that join returns.
func observe(wait time.Duration) { barriers.Add(1); waits.Add(int64(wait)) }

// The number of waits for other servers, and their total time.
var barriers, waits atomic.Int64

// join opens a store that has joined the servers of an etcd. url may be several URLs with commas. Commits below
// "rules/" wait for all servers.
func join(t *testing.T, url string, applied func(context.Context, int64) error) *etcd.Store {
	t.Helper()
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: strings.Split(url, ",")},
		Everywhere: []string{"rules/"}, ObserveBarrier: observe})
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

// TestLostRegistration checks that a server registers although etcd loses some of its requests. A member that has just
// lost its connection to the leader loses a request, and responds seven seconds later. If etcd notices the end of the
// request's time before the client does, it responds with a status.
func TestLostRegistration(t *testing.T) {
	for name, noticed := range map[string]bool{"no response": false, "status": true} {
		t.Run(name, func(t *testing.T) {
			r := newRelay(t, storagetest.StartEtcd(t).URL)
			end := make(chan struct{})
			t.Cleanup(func() { close(end) })
			lost := map[string]int{methodGrant: 1, methodPut: 1, methodTxn: 1}
			var mu sync.Mutex
			r.set(func(method string, response []byte) ([][]byte, error) {
				mu.Lock()
				lost[method]--
				lose := lost[method] >= 0
				mu.Unlock()
				switch {
				case lose && noticed:
					return nil, status.Error(codes.DeadlineExceeded, "stream terminated")
				case lose:
					<-end
				}
				return [][]byte{response}, nil
			})
			if err := join(t, r.url, nil).Valid(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLateAcknowledgement checks that a server acknowledges a write again if etcd executes an earlier acknowledgement
// after the newest one. Otherwise the next write of rules would wait for it in vain.
func TestLateAcknowledgement(t *testing.T) {
	e := storagetest.StartEtcd(t)
	a, b := join(t, e.URL, nil), join(t, e.URL, nil)
	made := put(t, a, storage.Write{Key: "rules/a", Value: []byte("1")})
	c := newClient(t, e.URL)
	members, err := c.Get(t.Context(), "/registry/trellis/members/", clientv3.WithPrefix())
	if err != nil || len(members.Kvs) != 2 {
		t.Fatalf("%d registrations: %v", len(members.Kvs), err)
	}
	for _, kv := range members.Kvs {
		if _, err := c.Put(t.Context(), string(kv.Key), "1", clientv3.WithIgnoreLease()); err != nil {
			t.Fatal(err)
		}
	}
	wait(t, "b does not acknowledge the write again", func() bool {
		members, err = c.Get(t.Context(), "/registry/trellis/members/", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(members.Kvs, func(kv *mvccpb.KeyValue) bool {
			revision, err := strconv.ParseInt(string(kv.Value), 10, 64)
			return err == nil && revision >= made.Revision
		})
	})
	if err := b.Valid(); err != nil {
		t.Error(err)
	}
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

// leaderOf returns the index of the leader among the members of an etcd.
func leaderOf(t *testing.T, c *clientv3.Client, urls []string) int {
	t.Helper()
	for i, url := range urls {
		status, err := c.Status(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		if status.Header.MemberId == status.Leader {
			return i
		}
	}
	t.Fatal("etcd has no leader")
	return 0
}

// TestPausedMember checks servers while each member of etcd except the leader is paused in turn. One of them may be the
// member that sends the changes to the replica. Within the time of a lease, a consistent read on the replica succeeds,
// and each write of a rule on another server returns. The replica stays valid, or becomes valid again.
func TestPausedMember(t *testing.T) {
	members := storagetest.StartEtcdMembers(t, 3)
	var urls []string
	for _, m := range members {
		urls = append(urls, m.URL)
	}
	all := strings.Join(urls, ",")
	writer, replica := join(t, all, nil), join(t, all, nil)
	for i := range members {
		if i == leaderOf(t, newClient(t, urls...), urls) {
			continue
		}
		members[i].Signal(syscall.SIGSTOP)
		began := time.Now()
		wait(t, "no consistent read succeeds", func() bool { _, err := replica.Fresh(t.Context()); return err == nil })
		read := time.Since(began)
		write, writes := time.Duration(0), 0
		wait(t, "few writes succeed", func() bool { // more writes than members, so that each one gets a write
			began := time.Now()
			_, err := writer.Commit(t.Context(), []storage.Write{{Key: "rules/" + rand.Text(), Value: []byte("1")}})
			if write = max(write, time.Since(began)); err == nil {
				writes++
			}
			return writes == 2*len(members)
		})
		if read > 5*time.Second || write > 5*time.Second {
			t.Errorf("with member %d paused, a read succeeds after %v, and a write takes %v", i, read, write)
		}
		members[i].Signal(syscall.SIGCONT)
		wait(t, "the replica is not valid", func() bool { return replica.Valid() == nil })
	}
}

// TestStuckWatch checks a server that receives no changes, although its other requests to etcd succeed. Its
// registration expires: the server is not valid any more, and writes of rules on another server do not wait for it.
func TestStuckWatch(t *testing.T) {
	e := storagetest.StartEtcd(t)
	r := newRelay(t, e.URL)
	a, b := join(t, e.URL, nil), join(t, r.url, nil)
	r.set(func(method string, response []byte) ([][]byte, error) {
		if method == methodWatch {
			return nil, nil
		}
		return [][]byte{response}, nil
	})
	began := time.Now()
	put(t, a, storage.Write{Key: "rules/a", Value: []byte("1")})
	if d := time.Since(began); d > 7*time.Second || b.Valid() == nil {
		t.Errorf("a write has waited %v for a server without changes, which is then %v", d, b.Valid())
	}
}

// TestStuckWatchIsRestarted checks that a server continues after a watch that etcd keeps open without sending anything.
func TestStuckWatchIsRestarted(t *testing.T) {
	e := storagetest.StartEtcd(t)
	r := newRelay(t, e.URL)
	a, b := join(t, e.URL, nil), join(t, r.url, nil)
	var stuck atomic.Bool
	stuck.Store(true)
	r.set(func(method string, response []byte) ([][]byte, error) {
		var resp pb.WatchResponse
		if method != methodWatch || !stuck.Load() {
			return [][]byte{response}, nil
		}
		if err := proto.Unmarshal(response, &resp); err != nil {
			t.Error(err)
		}
		if resp.Created { // of another watch
			stuck.Store(false)
			return [][]byte{response}, nil
		}
		return nil, nil
	})
	made := put(t, a, storage.Write{Key: "other/a", Value: []byte("1")})
	if _, err := b.Wait(t.Context(), made.Revision); err != nil {
		t.Fatal(err)
	}
	for b.Valid() != nil {
		<-time.After(time.Millisecond)
	}
}

// TestSlowMember checks that a commit succeeds although a member of etcd is slow to respond to it. The outcome of the
// deletion would be unknown if the store closed the connection.
func TestSlowMember(t *testing.T) {
	_, r, _, s := relayed(t)
	made := put(t, s, storage.Write{Key: "a", Value: []byte("1")})
	r.set(func(method string, response []byte) ([][]byte, error) {
		if method == methodTxn {
			<-time.After(3 * time.Second)
		}
		return [][]byte{response}, nil
	})
	if _, err := s.Commit(t.Context(), []storage.Write{{Key: "a", Expected: made.Revision}}); err != nil {
		t.Error(err)
	}
}
