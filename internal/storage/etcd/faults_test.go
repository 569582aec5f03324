package etcd_test

// The tests below give the store the faults that etcd has had since 2022, as far as only a client of etcd can observe
// them. The sources are the table of etcd's tests/robustness/README.md, reports of Jepsen, and etcd's issues. The other
// faults are in internal/storage/storagetest/faults_test.go and run on all stores.
//
//	etcd#15220        progress ahead of events                       TestProgressAheadOfEvents
//	etcd#15271        watch goes back after a member gets a snapshot TestRepeatedEvents
//	etcd#17247        repeated events                                TestRepeatedEvents
//	etcd#20221        old events on a watch of a future revision     TestRepeatedEvents
//	etcd#17529        events omitted when a watch is slow            TestOmittedEvents
//	etcd#18089 #19179 deletions omitted around a compaction          TestOmittedEvents
//	etcd#13766 #14685 members with different revisions               TestRevisionDecreases
//	etcd#14370 #17780 revision decreases after a crash               TestRevisionDecreases, TestOvertaken
//	etcd#20418 #14140 stale reads                                    TestRevisionDecreases
//	etcd#15247        leases revoked before their time               TestRevokedRegistration, TestRevokedLease
//	etcd#14890 #18424 commits executed twice or in doubt             TestLostResponse
//	restore           older data, or another cluster                 TestRestored, TestOvertaken, TestOtherCluster
//	etcd#18667        reads at a compacted revision in transactions  none: the store sends no such reads
//	etcd#14571        members with different permissions             none: TestAuthentication checks rejected requests

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// wait waits for a condition, and fails the test after 20 seconds.
func wait(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("timeout: ", what)
		}
	}
}

// wantFailed waits until a store has failed with a cause.
func wantFailed(t *testing.T, s *etcd.Store, cause string) {
	t.Helper()
	wait(t, "the store does not fail", func() bool { return s.Failed() != nil })
	if err := s.Failed(); !errors.Is(err, storage.ErrFailed) || !strings.Contains(err.Error(), cause) {
		t.Errorf("the store has failed with %v, want %q", err, cause)
	}
}

// relayed returns an etcd, a relay to it, a client that bypasses the relay, and a store that uses the relay.
func relayed(t *testing.T) (*storagetest.Etcd, *relay, *clientv3.Client, *etcd.Store) {
	t.Helper()
	return relayedWith(t, etcd.Options{})
}

// relayedWith is like relayed, for a store with other options.
func relayedWith(t *testing.T, o etcd.Options) (*storagetest.Etcd, *relay, *clientv3.Client, *etcd.Store) {
	t.Helper()
	e := storagetest.StartEtcd(t)
	r := newRelay(t, e.URL)
	o.Servers = []string{r.url}
	return e, r, newClient(t, e.URL), open(t, o)
}

func foreignPut(t *testing.T, c *clientv3.Client, key, value string) (revision int64) {
	t.Helper()
	resp, err := c.Put(t.Context(), "/registry/"+key, value)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}

func foreignDelete(t *testing.T, c *clientv3.Client, key string) (revision int64) {
	t.Helper()
	resp, err := c.Delete(t.Context(), "/registry/"+key)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}

// TestProgressAheadOfEvents checks that the store fails if etcd reports progress up to a revision and then sends an
// event of this revision (etcd#15220). Clients may have seen the progress as a bookmark.
func TestProgressAheadOfEvents(t *testing.T) {
	_, r, c, s := relayed(t)
	put(t, s, storage.Write{Key: "a", Value: []byte("1")})
	w, err := s.Watch(t.Context(), "", s.Head().Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r.setWatch(t, func(resp *pb.WatchResponse) []*pb.WatchResponse {
		return []*pb.WatchResponse{clone(resp), resp}
	})
	foreignPut(t, c, "late", "1")
	wantFailed(t, s, "late has changed at revision")
	for err == nil {
		<-w.Ready()
		var events []*storage.Event
		if events, _, err = w.Take(nil); len(events) > 0 {
			t.Errorf("the cursor has delivered %+v", events[0])
		}
	}
	if !storage.MissedEvents(err) || s.Head().Get("late") != nil {
		t.Errorf("the cursor has ended with %v, and the head has %v", err, s.Head().Get("late"))
	}
}

// TestRepeatedEvents checks that the store publishes each event once if etcd sends events again, also from before the
// start of the watch (etcd#15271, etcd#17247, etcd#20221). Watches of older revisions deliver each event once, too.
func TestRepeatedEvents(t *testing.T) {
	_, r, c, s := relayed(t)
	start := s.Head().Revision()
	var mu sync.Mutex
	var sent []*mvccpb.Event
	r.setWatch(t, func(resp *pb.WatchResponse) []*pb.WatchResponse {
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, resp.Events...)
		twice := slices.Concat(resp.Events, resp.Events)
		all := []*pb.WatchResponse{resp, clone(resp, twice...), clone(resp, sent...)}
		if old := sent[:len(sent)-len(resp.Events)]; len(old) > 0 {
			all = append(all, clone(resp, old...))
		}
		return all
	})
	stores := []*etcd.Store{s}
	var revisions []int64
	for i := range 20 {
		if i == 10 { // later events include some from before its start
			if _, err := s.Wait(t.Context(), revisions[len(revisions)-1]); err != nil {
				t.Fatal(err)
			}
			late := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{r.url}}})
			wantRevisions(t, late, start, revisions)
			stores = append(stores, late)
		}
		revisions = append(revisions, foreignPut(t, c, fmt.Sprint(i%3), fmt.Sprint(i)))
		if i%4 == 3 {
			revisions = append(revisions, foreignDelete(t, c, fmt.Sprint(i%3)))
		}
	}
	for _, s := range stores {
		wantRevisions(t, s, start, revisions)
	}
}

// wantRevisions checks that a cursor delivers events with exactly the given revisions.
func wantRevisions(t *testing.T, s *etcd.Store, after int64, revisions []int64) {
	t.Helper()
	w, err := s.Watch(t.Context(), "", after)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var got []int64
	wait(t, "the cursor has delivered few events", func() bool {
		events, _, err := w.Take(nil)
		if err != nil {
			t.Fatalf("%v, %v", err, s.Failed())
		}
		for _, e := range events {
			got = append(got, e.Revision)
		}
		return len(got) >= len(revisions)
	})
	if _, err := s.Fresh(t.Context()); err != nil || !slices.Equal(got, revisions) {
		t.Errorf("the cursor has delivered the revisions %v, want %v, %v", got, revisions, err)
	}
}

// TestOmittedEvents checks that the store fails if it notices that etcd's watch has omitted an event (etcd#17529,
// etcd#18089, etcd#19179): at the next event of the key, after a commit, or after a conflict. Until then the store
// cannot notice it.
func TestOmittedEvents(t *testing.T) {
	update := func(t *testing.T, s *etcd.Store, key string) error {
		w := storage.Write{Key: key, Value: []byte("2"), Expected: s.Head().Get(key).Modified}
		_, err := s.Commit(t.Context(), []storage.Write{w})
		return err
	}
	for name, change := range map[string]func(t *testing.T, c *clientv3.Client, s *etcd.Store, omit func()){
		"deletion": func(t *testing.T, c *clientv3.Client, _ *etcd.Store, omit func()) {
			omit()
			foreignDelete(t, c, "a")
			foreignPut(t, c, "a", "2")
		},
		"creation before update": func(t *testing.T, c *clientv3.Client, _ *etcd.Store, omit func()) {
			omit()
			foreignPut(t, c, "b", "1")
			foreignPut(t, c, "b", "2")
		},
		"creation before deletion": func(t *testing.T, c *clientv3.Client, _ *etcd.Store, omit func()) {
			omit()
			foreignPut(t, c, "b", "1")
			foreignDelete(t, c, "b")
		},
		"own update": func(t *testing.T, _ *clientv3.Client, s *etcd.Store, omit func()) {
			omit()
			if err := update(t, s, "a"); err != nil {
				t.Errorf("the commit returns %v", err)
			}
		},
		"own deletion": func(t *testing.T, _ *clientv3.Client, s *etcd.Store, omit func()) {
			omit()
			deletion := storage.Write{Key: "a", Expected: s.Head().Get("a").Modified}
			if _, err := s.Commit(t.Context(), []storage.Write{deletion}); err != nil {
				t.Errorf("the commit returns %v", err)
			}
		},
		"update before conflict": func(t *testing.T, c *clientv3.Client, s *etcd.Store, omit func()) {
			omit()
			foreignPut(t, c, "a", "2")
			if _, err := s.Fresh(t.Context()); err != nil {
				t.Error(err)
			}
			var conflict *storage.ConflictError
			if err := update(t, s, "a"); !errors.As(err, &conflict) {
				t.Errorf("the commit returns %v", err)
			}
		},
		"deletion before conflict": func(t *testing.T, c *clientv3.Client, s *etcd.Store, omit func()) {
			omit()
			foreignDelete(t, c, "a")
			if _, err := s.Fresh(t.Context()); err != nil {
				t.Error(err)
			}
			var conflict *storage.ConflictError
			if err := update(t, s, "a"); !errors.As(err, &conflict) {
				t.Errorf("the commit returns %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, r, c, s := relayed(t)
			put(t, s, storage.Write{Key: "a", Value: []byte("1")})
			change(t, c, s, func() {
				var once sync.Once
				r.setWatch(t, func(resp *pb.WatchResponse) []*pb.WatchResponse {
					once.Do(func() { resp = clone(resp, resp.Events[1:]...) })
					if len(resp.Events) == 0 {
						return nil
					}
					return []*pb.WatchResponse{resp}
				})
			})
			wantFailed(t, s, "has omitted changes of /registry/")
		})
	}
}

// TestRevisionDecreases checks that the store fails if a read returns a lower revision than the store has published
// (etcd#13766, etcd#14370, etcd#14685, etcd#17780, etcd#20418).
func TestRevisionDecreases(t *testing.T) {
	_, r, _, s := relayed(t)
	put(t, s, storage.Write{Key: "a", Value: []byte("1")})
	r.setHeaders(t, func(h *pb.ResponseHeader) { h.Revision-- })
	if _, err := s.Fresh(t.Context()); !errors.Is(err, storage.ErrFailed) {
		t.Errorf("Fresh: %v", err)
	}
	wantFailed(t, s, "its revision has decreased")
}

// TestOtherCluster checks that the store fails if a proxy of etcd forwards its requests to another cluster without
// interrupting the connection.
func TestOtherCluster(t *testing.T) {
	t.Run("read", func(t *testing.T) {
		_, r, _, s := relayed(t)
		r.setHeaders(t, func(h *pb.ResponseHeader) { h.ClusterId++ })
		if _, err := s.Fresh(t.Context()); !errors.Is(err, storage.ErrFailed) {
			t.Errorf("Fresh: %v", err)
		}
		wantFailed(t, s, "the ID of the cluster is")
	})
	t.Run("watch", func(t *testing.T) {
		_, r, c, s := relayed(t)
		r.setWatch(t, func(resp *pb.WatchResponse) []*pb.WatchResponse {
			other := proto.Clone(resp).(*pb.WatchResponse)
			other.Header.ClusterId++
			return []*pb.WatchResponse{other}
		})
		foreignPut(t, c, "a", "1")
		wantFailed(t, s, "the ID of the cluster is")
		if s.Head().Get("a") != nil {
			t.Error("the store has published an event of the other cluster")
		}
	})
}

// TestRevokedRegistration checks a server whose registration etcd removes before its time (etcd#15247). The server is
// not valid from the event on, and not only when it next renews the registration. It then registers again.
func TestRevokedRegistration(t *testing.T) {
	e := storagetest.StartEtcd(t)
	r, c := newRelay(t, e.URL), newClient(t, e.URL)
	s := join(t, r.url, nil)
	release := make(chan struct{})
	r.set(func(method string, response []byte) ([][]byte, error) {
		if method == "/etcdserverpb.Lease/LeaseGrant" {
			<-release
		}
		return [][]byte{response}, nil
	})
	found, err := c.Get(t.Context(), "/registry/trellis/members/", clientv3.WithPrefix())
	if err != nil || len(found.Kvs) != 1 {
		t.Fatal(found, err)
	}
	began := time.Now()
	if _, err := c.Revoke(t.Context(), clientv3.LeaseID(found.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	wait(t, "the server stays valid", func() bool { return s.Valid() != nil })
	if d := time.Since(began); d > 2*time.Second { // the deadline of the registration is at least three seconds away
		t.Errorf("the server is valid for %v after the end of its registration", d)
	}
	close(release)
	wait(t, "the server does not become valid", func() bool { return s.Valid() == nil })
	put(t, s, storage.Write{Key: "a", Value: []byte("1")})
}

// TestFailedMember checks a server whose store has failed. It is not valid, and commits of other servers do not wait
// for it, although it is still connected to etcd. It publishes no later changes.
func TestFailedMember(t *testing.T) {
	e := storagetest.StartEtcd(t)
	r := newRelay(t, e.URL)
	a, b := join(t, e.URL, nil), join(t, r.url, nil)
	r.setHeaders(t, func(h *pb.ResponseHeader) { h.ClusterId++ })
	if _, err := b.Fresh(t.Context()); !errors.Is(err, storage.ErrFailed) {
		t.Fatalf("Fresh: %v", err)
	}
	if err := b.Valid(); !errors.Is(err, storage.ErrFailed) {
		t.Errorf("Valid: %v", err)
	}
	put(t, a, storage.Write{Key: "rules/a", Value: []byte("1")})
	wait(t, "the server is still registered", func() bool { return a.Servers() == 1 })
	if b.Head().Get("rules/a") != nil {
		t.Error("the failed store has published a change")
	}
}
