package etcd_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// tryPut writes a key and returns the error of the commit.
func tryPut(t *testing.T, s *etcd.Store, w storage.Write) error {
	t.Helper()
	if r := s.Head().Get(w.Key); r != nil {
		w.Expected = r.Modified
	}
	_, err := s.Commit(t.Context(), []storage.Write{w})
	return err
}

// wantReadable checks that reads of the newest known state work, and that the store has not failed.
func wantReadable(t *testing.T, s *etcd.Store, key string) {
	t.Helper()
	if s.Head().Get(key) == nil || s.Failed() != nil {
		t.Errorf("the head has %v, and the state of the store is %v", s.Head().Get(key), s.Failed())
	}
}

// TestNoSpace checks a store whose etcd has raised the alarm NOSPACE. Writes return ErrNoSpace, also those with a TTL.
// Reads, deletions and compactions work. Once the alarm is disarmed, writes succeed again.
func TestNoSpace(t *testing.T) {
	e := storagetest.StartEtcd(t, "--quota-backend-bytes=2097152")
	c := newClient(t, e.URL)
	tick, idle := make(chan time.Time), make(chan struct{}, 1)
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL}},
		After: func(time.Duration) <-chan time.Time { idle <- struct{}{}; return tick }})
	turn := func() {
		<-idle
		tick <- time.Time{}
	}
	turn()
	put(t, s, storage.Write{Key: "a", Value: []byte("1")})
	var err error
	for i := 0; err == nil; i++ {
		err = tryPut(t, s, storage.Write{Key: fmt.Sprintf("large/%d", i%4), Value: make([]byte, 200<<10)})
	}
	if !errors.Is(err, storage.ErrNoSpace) || !strings.Contains(err.Error(), "database space exceeded") {
		t.Fatalf("a write without space: %v", err)
	}
	for _, ttl := range []time.Duration{0, time.Hour} {
		err := tryPut(t, s, storage.Write{Key: "b", Value: []byte("1"), TTL: ttl})
		if !errors.Is(err, storage.ErrNoSpace) {
			t.Errorf("a write with TTL %v: %v", ttl, err)
		}
	}
	late := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL}}})
	if err := late.Join(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "database space exceeded") {
		t.Errorf("Join without space: %v", err)
	}
	wantReadable(t, s, "a")
	now, err := s.Fresh(t.Context())
	if err != nil {
		t.Errorf("Fresh without space: %v", err)
	}
	deletion := storage.Write{Key: "large/0", Expected: now.Get("large/0").Modified}
	if _, err := s.Commit(t.Context(), []storage.Write{deletion}); err != nil {
		t.Errorf("a deletion without space: %v", err)
	}
	turn()
	turn()
	<-idle
	if got, err := c.Get(t.Context(), "a", clientv3.WithRev(now.Revision()-1)); err == nil {
		t.Errorf("the history is not compacted: %v", got)
	}
	wait(t, "writes do not succeed again", func() bool { // etcd deletes compacted revisions in the background
		if _, err := c.Defragment(t.Context(), e.URL); err != nil {
			t.Fatal(err)
		}
		if _, err := c.AlarmDisarm(t.Context(), &clientv3.AlarmMember{}); err != nil {
			t.Fatal(err)
		}
		return tryPut(t, s, storage.Write{Key: "b", Value: []byte("1"), TTL: time.Hour}) == nil
	})
}

// TestAuthentication checks a store that loses its permissions in etcd. Requests return an ErrUnavailable with etcd's
// reason, and the newest known state can be read. The store recovers when it has the permissions again.
func TestAuthentication(t *testing.T) {
	e := storagetest.StartEtcd(t)
	c := newClient(t, e.URL)
	o := etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL}}, Timeout: 2 * time.Second}
	foreignPut(t, c, "a", "1")
	s := open(t, o)
	_, err := c.UserAdd(t.Context(), "root", "password")
	if err == nil {
		_, err = c.UserGrantRole(t.Context(), "root", "root")
	}
	if err == nil {
		_, err = c.AuthEnable(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	const reason = "user name is empty"
	_, fresh := s.Fresh(t.Context())
	_, at := s.At(t.Context(), 1)
	for name, err := range map[string]error{
		"Commit": tryPut(t, s, storage.Write{Key: "a", Value: []byte("2")}), "Fresh": fresh, "At": at,
		"Commit with a TTL": tryPut(t, s, storage.Write{Key: "b", Value: []byte("2"), TTL: time.Hour}),
	} {
		if !errors.Is(err, storage.ErrUnavailable) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v", name, err)
		}
	}
	o.Prefix = "/registry/"
	if _, err := etcd.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("Open: %v", err)
	}
	wantReadable(t, s, "a")
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{e.URL}, Username: "root", Password: "password"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	if _, err := root.AuthDisable(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, s, storage.Write{Key: "a", Value: []byte("3")})
	if _, err := s.Fresh(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestPaused checks a store whose etcd does not respond. Calls return an error within the timeout, and the newest known
// state can be read. The store recovers when etcd continues.
func TestPaused(t *testing.T) {
	e := storagetest.StartEtcd(t)
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL}}, Timeout: 2 * time.Second})
	put(t, s, storage.Write{Key: "a", Value: []byte("1")})
	e.Signal(syscall.SIGSTOP)
	began := time.Now()
	wait(t, "etcd responds", func() bool {
		began = time.Now()
		_, err := s.Fresh(t.Context())
		return errors.Is(err, storage.ErrUnavailable)
	})
	err := tryPut(t, s, storage.Write{Key: "a", Value: []byte("2")})
	if !errors.Is(err, storage.ErrInDoubt) && !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("Commit: %v", err)
	}
	if d := time.Since(began); d > 8*time.Second {
		t.Errorf("the calls have taken %v", d)
	}
	wantReadable(t, s, "a")
	e.Signal(syscall.SIGCONT)
	wait(t, "the store does not recover", func() bool { _, err := s.Fresh(t.Context()); return err == nil })
	wait(t, "no commit succeeds", func() bool { // a commit in doubt may cause a conflict
		return tryPut(t, s, storage.Write{Key: "a", Value: []byte("3")}) == nil
	})
}

// TestMembers checks a store over three members while the leader is killed, while it has no majority, and while a
// member is removed. It reads its newest known state, commits when there is a leader, and its cursors miss no event.
func TestMembers(t *testing.T) {
	members := storagetest.StartEtcdMembers(t, 3)
	var urls []string
	for _, m := range members {
		urls = append(urls, m.URL)
	}
	c := newClient(t, urls...)
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: urls}, Timeout: 3 * time.Second})
	first := put(t, s, storage.Write{Key: "a", Value: []byte("0")})
	w, err := s.Watch(t.Context(), "", first.Revision-1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	commits := 1
	commit := func() { // until a commit is known to have succeeded
		t.Helper()
		wait(t, "no commit succeeds", func() bool {
			value := fmt.Sprint(commits)
			if r := s.Head().Get("a"); string(r.Value) == value { // a commit in doubt
				commits++
				return true
			}
			err := tryPut(t, s, storage.Write{Key: "a", Value: []byte(value)})
			if err == nil {
				commits++
			}
			var conflict *storage.ConflictError
			if err != nil && !errors.Is(err, storage.ErrInDoubt) && !errors.Is(err, storage.ErrUnavailable) &&
				!errors.As(err, &conflict) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	leader := leaderOf(t, c, urls)
	members[leader].Kill()
	wantReadable(t, s, "a")
	commit()
	other := (leader + 1) % 3
	members[other].Kill()
	if _, err := s.Fresh(t.Context()); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("Fresh without a majority: %v", err)
	}
	wantReadable(t, s, "a")
	wait(t, "a member without a leader does not reject commits", func() bool {
		_, err := s.Commit(t.Context(), []storage.Write{{Key: "a", Value: []byte("0"), Expected: 1}}) // never succeeds
		return errors.Is(err, storage.ErrUnavailable) && !errors.Is(err, storage.ErrInDoubt)
	})
	members[leader].Start()
	members[other].Start()
	commit()
	list, err := c.MemberList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Members {
		if m.Name == fmt.Sprintf("m%d", other) {
			wait(t, "the member cannot be removed", func() bool {
				_, err := c.MemberRemove(t.Context(), m.ID)
				return err == nil
			})
		}
	}
	commit()
	var last *storage.Snapshot
	wait(t, "the store does not recover", func() bool {
		last, err = s.Fresh(t.Context())
		return err == nil
	})
	for seen := int64(0); err == nil && seen < last.Revision(); {
		var events []*storage.Event
		w.Await(last.Revision())
		if events, seen, err = w.Take(nil); len(events) == 0 && seen < last.Revision() {
			<-w.Ready()
		}
		for _, e := range events {
			if e.Previous != nil && e.Previous.Modified >= e.Revision {
				t.Errorf("%+v follows %+v", e, e.Previous)
			}
			if e.Previous == nil && e.Revision != first.Revision ||
				e.Previous != nil && string(e.Record.Value) != fmt.Sprint(int(e.Previous.Value[0]-'0')+1) {
				t.Errorf("%s follows %v", e.Record.Value, e.Previous)
			}
		}
	}
	if err != nil || string(last.Get("a").Value) != fmt.Sprint(commits-1) {
		t.Errorf("the cursor has ended with %v, and the newest value is %s after %d commits", err, last.Get("a").Value,
			commits)
	}
}

// TestOpenWithoutEtcd checks the error of a start without etcd.
func TestOpenWithoutEtcd(t *testing.T) {
	_, err := etcd.Open(t.Context(), etcd.Options{Cluster: etcd.Cluster{Servers: []string{"http://127.0.0.1:1"}},
		Timeout: 100 * time.Millisecond})
	const want = "load from etcd at http://127.0.0.1:1: context deadline exceeded: make sure that a majority of its " +
		"members run and can be reached, and start again"
	if err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
}

// TestLargeValues checks that a store loads and receives many values of the maximum size.
func TestLargeValues(t *testing.T) {
	e := storagetest.StartEtcd(t)
	p, c := newProxy(t, e.URL), newClient(t, e.URL)
	large, n := strings.Repeat("x", 1400<<10), 12
	for i := range n {
		foreignPut(t, c, fmt.Sprintf("before/%d", i), large)
	}
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{p.url}}})
	w, err := s.Watch(t.Context(), "", s.Head().Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	p.close()
	var last int64
	for i := range n {
		last = foreignPut(t, c, fmt.Sprintf("after/%d", i), large)
	}
	p.open()
	if _, err := s.Wait(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	var events []*storage.Event
	wait(t, "the cursor has delivered few events", func() bool {
		if events, _, err = w.Take(events); err != nil {
			t.Fatal(err)
		}
		return len(events) == n
	})
	if head := s.Head(); head.Count("before/", "") != n || head.Count("after/", "") != n {
		t.Errorf("the store has %d records from before its start, and %d others", head.Count("before/", ""),
			head.Count("after/", ""))
	}
}

// TestRevokedLease checks that a commit with a TTL succeeds with a new lease if the shared lease does not exist any
// more (etcd#15247). The commit fails if the new lease does not exist either.
func TestRevokedLease(t *testing.T) {
	e := storagetest.StartEtcd(t)
	r, c := newRelay(t, e.URL), newClient(t, e.URL)
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{r.url}}})
	revoke := func() {
		leases, err := c.Leases(t.Context())
		for i := 0; err == nil && i < len(leases.Leases); i++ {
			_, err = c.Revoke(t.Context(), leases.Leases[i].ID)
		}
		if err != nil {
			t.Error(err)
		}
	}
	put(t, s, storage.Write{Key: "a", Value: []byte("1"), TTL: time.Hour})
	revoke()
	wait(t, "the record is not deleted", func() bool { return s.Head().Get("a") == nil })
	made := put(t, s, storage.Write{Key: "b", Value: []byte("1"), TTL: time.Hour})
	got, err := c.Get(t.Context(), "/registry/b")
	if err != nil || got.Kvs[0].Lease == 0 || made.Record.Expires.IsZero() {
		t.Errorf("the record has no lease: %v, %v", got, err)
	}
	revoke()
	grants := 0
	r.set(func(method string, response []byte) ([][]byte, error) {
		if method == "/etcdserverpb.Lease/LeaseGrant" {
			grants++
			revoke()
		}
		return [][]byte{response}, nil
	})
	err = tryPut(t, s, storage.Write{Key: "c", Value: []byte("1"), TTL: time.Hour})
	if !errors.Is(err, storage.ErrUnavailable) || grants != 1 {
		t.Errorf("the commit requests %d leases and returns %v", grants, err)
	}
}
