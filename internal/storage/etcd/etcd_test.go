package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

func open(t *testing.T, o etcd.Options) *etcd.Store {
	t.Helper()
	if o.Prefix == "" {
		o.Prefix = "/registry/"
	}
	s, err := etcd.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newClient returns a client of etcd that bypasses the stores.
func newClient(t *testing.T, urls ...string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: urls, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func put(t *testing.T, s storage.Store, w storage.Write) *storage.Event {
	t.Helper()
	if r := s.Head().Get(w.Key); r != nil {
		w.Expected = r.Modified
	}
	events, err := s.Commit(t.Context(), []storage.Write{w})
	if err != nil {
		t.Fatal(err)
	}
	return events[0]
}

// TestPrefix checks that the prefix replaces the base of keys in etcd. Keys with other prefixes are not loaded, but
// Fresh waits for their revisions.
func TestPrefix(t *testing.T) {
	e := storagetest.StartEtcd(t)
	c := newClient(t, e.URL)
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL}, Prefix: "/mine/"},
		Base: "/registry/"})
	made := put(t, s, storage.Write{Key: "/registry/a/b", Value: []byte("1")})
	got, err := c.Get(t.Context(), "/mine/a/b")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "1" || got.Kvs[0].ModRevision != made.Revision {
		t.Fatalf("%v, %v", got, err)
	}
	other, err := c.Put(t.Context(), "/mined", "2")
	if err != nil {
		t.Fatal(err)
	}
	now, err := s.Fresh(t.Context())
	if err != nil || now.Revision() < other.Header.Revision || now.Count("", "") != 1 {
		t.Errorf("Fresh is at revision %d with %d records, want %d with 1: %v",
			now.Revision(), now.Count("", ""), other.Header.Revision, err)
	}
}

// TestLeases checks that keys with similar TTLs share a lease, and are deleted when it expires. A write without a TTL
// removes the lease of a key.
func TestLeases(t *testing.T) {
	e := storagetest.StartEtcd(t)
	c := newClient(t, e.URL)
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL}}})
	lease := func(key string) int64 {
		got, err := c.Get(t.Context(), "/registry/"+key)
		if err != nil || len(got.Kvs) != 1 {
			t.Fatal(got, err)
		}
		return got.Kvs[0].Lease
	}
	hour := put(t, s, storage.Write{Key: "hour", Value: []byte("1"), TTL: time.Hour})
	put(t, s, storage.Write{Key: "day", Value: []byte("1"), TTL: 24 * time.Hour})
	put(t, s, storage.Write{Key: "hour too", Value: []byte("1"), TTL: time.Hour})
	if lease("hour") == 0 || lease("hour") != lease("hour too") || lease("day") == lease("hour") {
		t.Errorf("leases %d, %d, %d", lease("hour"), lease("hour too"), lease("day"))
	}
	if left := time.Until(hour.Record.Expires); left < 59*time.Minute || left > 62*time.Minute {
		t.Errorf("the record expires in %v, want about an hour", left)
	}
	put(t, s, storage.Write{Key: "hour", Value: []byte("2")})
	if lease("hour") != 0 || !s.Head().Get("hour").Expires.IsZero() {
		t.Error("a record written without a TTL still expires")
	}
	made := put(t, s, storage.Write{Key: "soon", Value: []byte("1"), TTL: time.Second})
	w, err := s.Watch(t.Context(), "soon", made.Revision)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for {
		<-w.Ready()
		events, _, err := w.Take(nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) > 0 {
			if ev := events[0]; ev.Record != nil || ev.Previous == nil || s.Head().Get("soon") != nil {
				t.Errorf("%+v", ev)
			}
			return
		}
	}
}

// TestCompactedWhileDisconnected checks a store that reconnects after etcd has compacted changes that the store has
// not seen. Its cursors end, and its state is correct.
func TestCompactedWhileDisconnected(t *testing.T) {
	e := storagetest.StartEtcd(t)
	p := newProxy(t, e.URL)
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{p.url}}})
	first := put(t, s, storage.Write{Key: "a", Value: []byte("1")})
	same := put(t, s, storage.Write{Key: "same", Value: []byte("1")}).Record
	w, err := s.Watch(t.Context(), "", first.Revision)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for seen := int64(0); seen < same.Modified; { // read all events so far
		<-w.Ready()
		if _, seen, err = w.Take(nil); err != nil {
			t.Fatal(err)
		}
	}
	p.close()
	c := newClient(t, e.URL)
	var last int64
	for i := range 5 {
		resp, err := c.Put(t.Context(), fmt.Sprintf("/registry/b%d", i), "2")
		if err != nil {
			t.Fatal(err)
		}
		last = resp.Header.Revision
	}
	if _, err := c.Delete(t.Context(), "/registry/a"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	p.open()
	now, err := s.Wait(t.Context(), last+1)
	if err != nil {
		t.Fatal(err)
	}
	if now.Get("a") != nil || now.Count("b", "") != 5 || now.Get("same") != same {
		t.Errorf("got %d records below b, a is %v", now.Count("b", ""), now.Get("a"))
	}
	for err == nil {
		<-w.Ready()
		_, _, err = w.Take(nil)
	}
	if !storage.MissedEvents(err) {
		t.Errorf("the cursor ended with %v", err)
	}
	var compacted *storage.CompactedError
	if _, err := s.Watch(t.Context(), "", first.Revision); !errors.As(err, &compacted) {
		t.Errorf("Watch from a compacted revision: %v", err)
	}
	put(t, s, storage.Write{Key: "a", Value: []byte("3")})
}

// TestLostResponse checks that a commit whose response is lost succeeds or returns ErrInDoubt. It never reports that
// nothing was written.
func TestLostResponse(t *testing.T) {
	e := storagetest.StartEtcd(t)
	direct := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL}}})
	p := newProxy(t, e.URL)
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{p.url}}})
	made := put(t, s, storage.Write{Key: "a", Value: []byte("1")})
	for _, w := range []storage.Write{
		{Key: "a", Value: []byte("2"), Expected: made.Revision},
		{Key: "gone", Value: nil, Expected: put(t, s, storage.Write{Key: "gone", Value: []byte("1")}).Revision},
	} {
		now, err := direct.Fresh(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen, err := direct.Watch(t.Context(), w.Key, now.Revision())
		if err != nil {
			t.Fatal(err)
		}
		p.dropResponses()
		type result struct {
			events []*storage.Event
			err    error
		}
		results := make(chan result)
		go func() {
			events, err := s.Commit(context.Background(), []storage.Write{w})
			results <- result{events, err}
		}()
		var events []*storage.Event
		for len(events) == 0 { // wait until etcd has executed the commit
			<-seen.Ready()
			if events, _, err = seen.Take(nil); err != nil {
				t.Fatal(err)
			}
		}
		seen.Close()
		p.close()
		p.open()
		got := <-results
		if got.err == nil && got.events[0].Revision == events[0].Revision {
			continue
		}
		if w.Value != nil || !errors.Is(got.err, storage.ErrInDoubt) {
			t.Errorf("%s: %v, %v", w.Key, got.events, got.err)
		}
	}
}

// TestDisconnected checks that calls return ErrUnavailable within the timeout while etcd is unreachable.
func TestDisconnected(t *testing.T) {
	e := storagetest.StartEtcd(t)
	put(t, open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL}}}), storage.Write{Key: "a", Value: []byte("1")})
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL}}, Timeout: time.Second})
	put(t, s, storage.Write{Key: "a", Value: []byte("2")})
	e.Kill()
	if _, err := s.Fresh(t.Context()); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("Fresh: %v", err)
	}
	if _, err := s.At(t.Context(), 1); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("At: %v", err)
	}
	if _, err := s.Watch(t.Context(), "", 1); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("Watch: %v", err)
	}
	for range 3 {
		_, err := s.Commit(t.Context(), []storage.Write{{Key: "b", Value: []byte("1")}})
		if !errors.Is(err, storage.ErrUnavailable) && !errors.Is(err, storage.ErrInDoubt) {
			t.Errorf("Commit: %v", err)
		}
	}
	if s.Head().Get("a") == nil || s.Failed() != nil {
		t.Errorf("the head is %v, Failed is %v", s.Head().Get("a"), s.Failed())
	}
	e.Start()
	var err error
	for err = storage.ErrUnavailable; errors.Is(err, storage.ErrUnavailable); {
		_, err = s.Fresh(t.Context())
	}
	if err != nil {
		t.Error(err)
	}
	put(t, s, storage.Write{Key: "a", Value: []byte("3")})
	o := etcd.Options{Cluster: etcd.Cluster{Servers: []string{"http://127.0.0.1:1"}, Prefix: "/x/"},
		Timeout: 100 * time.Millisecond}
	if _, err := etcd.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("Open without etcd: %v", err)
	}
}

// TestRestored checks that a store fails if etcd loses data, because it has already returned revisions that no longer
// exist.
func TestRestored(t *testing.T) {
	e, empty := storagetest.StartEtcd(t), storagetest.StartEtcd(t)
	p := newProxy(t, e.URL)
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{p.url}}, Timeout: 4 * time.Second})
	for range 5 {
		put(t, s, storage.Write{Key: "a", Value: []byte("1")})
	}
	p.close()
	p.target = strings.TrimPrefix(empty.URL, "http://")
	p.open()
	for s.Failed() == nil {
		if _, err := s.Fresh(t.Context()); err == nil {
			t.Fatal("Fresh succeeds although etcd has lost data")
		}
	}
	_, err := s.Commit(t.Context(), []storage.Write{{Key: "b", Value: []byte("1")}})
	if !errors.Is(err, storage.ErrFailed) {
		t.Errorf("Commit: got %v, want ErrFailed", err)
	}
}

// TestOvertaken checks a store that reconnects after etcd was restored from an older copy and has since passed the
// revision of the store. The store fails, and its cursors end. A restart of etcd without a loss has no such effect.
func TestOvertaken(t *testing.T) {
	e := storagetest.StartEtcd(t)
	p := newProxy(t, e.URL)
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{p.url}}, Timeout: 4 * time.Second})
	put(t, s, storage.Write{Key: "a", Value: []byte("1")})
	older := copyEtcd(t, e, p, s)
	last := put(t, s, storage.Write{Key: "lost", Value: []byte("1")})
	w, err := s.Watch(t.Context(), "", last.Revision)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	p.close()
	e.Restore(older)
	c := newClient(t, e.URL)
	for i := range 40 {
		if _, err := c.Put(t.Context(), fmt.Sprintf("/registry/foreign-%d", i), "1"); err != nil {
			t.Fatal(err)
		}
	}
	p.open()
	for err == nil {
		<-w.Ready()
		_, _, err = w.Take(nil)
	}
	if !storage.MissedEvents(err) || !errors.Is(s.Failed(), storage.ErrFailed) {
		t.Errorf("the cursor has ended with %v, and the state of the store is %v", err, s.Failed())
	}
	for name, call := range map[string]func() error{
		"Fresh": func() error { _, err := s.Fresh(t.Context()); return err },
		"Watch": func() error { _, err := s.Watch(t.Context(), "", last.Revision); return err },
		"At":    func() error { _, err := s.At(t.Context(), last.Revision); return err },
		"Commit": func() error {
			_, err := s.Commit(t.Context(), []storage.Write{{Key: "b", Value: []byte("1")}})
			return err
		},
	} {
		if err := call(); !errors.Is(err, storage.ErrFailed) {
			t.Errorf("%s: got %v, want ErrFailed", name, err)
		}
	}
	if s.Head().Get("foreign-39") != nil {
		t.Error("the store has read the other history")
	}
}

// copyEtcd restarts etcd, and returns a copy of its data. It waits until the store s has connected again, through p.
func copyEtcd(t *testing.T, e *storagetest.Etcd, p *proxy, s *etcd.Store) (older string) {
	t.Helper()
	older = t.TempDir()
	p.close()
	e.Kill()
	if err := os.CopyFS(older, os.DirFS(e.Dir)); err != nil {
		t.Fatal(err)
	}
	e.Start()
	p.open()
	for err := storage.ErrUnavailable; err != nil; {
		if _, err = s.Fresh(t.Context()); err != nil && !errors.Is(err, storage.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	return older
}

// TestOvertakenAfterDeletion is like TestOvertaken, for a history that ends with a deletion. The other history begins
// before the deletion or before the creation of the key. It may delete the key, too. A restart of etcd without a loss
// has no effect.
func TestOvertakenAfterDeletion(t *testing.T) {
	for name, since := range map[string]struct {
		creation bool
		foreign  string // key that the other history deletes after its first revision
	}{
		"before the deletion": {},
		"before the creation": {creation: true},
		"deleted later":       {foreign: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			e := storagetest.StartEtcd(t)
			p := newProxy(t, e.URL)
			s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{p.url}}, Timeout: 4 * time.Second})
			put(t, s, storage.Write{Key: "first", Value: []byte("1")})
			before := copyEtcd(t, e, p, s)
			made := put(t, s, storage.Write{Key: "a", Value: []byte("1")})
			older := copyEtcd(t, e, p, s)
			if since.creation {
				older = before
			}
			put(t, s, storage.Write{Key: "a", Expected: made.Revision})
			copyEtcd(t, e, p, s)
			p.close()
			e.Restore(older)
			c := newClient(t, e.URL)
			foreignPut(t, c, "b", "1")
			if since.foreign != "" {
				foreignDelete(t, c, since.foreign)
			}
			for i := range 40 {
				foreignPut(t, c, fmt.Sprint("foreign-", i), "1")
			}
			p.open()
			wantFailed(t, s, "/registry/a is not the same as before")
		})
	}
}

// TestCompactedOutsidePrefix checks a store that reconnects after etcd has compacted changes of other prefixes. Its
// cursors continue.
func TestCompactedOutsidePrefix(t *testing.T) {
	e := storagetest.StartEtcd(t)
	p := newProxy(t, e.URL)
	s, c := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{p.url}}}), newClient(t, e.URL)
	made := put(t, s, storage.Write{Key: "a", Value: []byte("1")})
	w, err := s.Watch(t.Context(), "", made.Revision)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	p.close()
	var last int64
	for range 5 {
		resp, err := c.Put(t.Context(), "/other", "1")
		if err != nil {
			t.Fatal(err)
		}
		last = resp.Header.Revision
	}
	if _, err := c.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	p.open()
	if _, err := s.Wait(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(t.Context(), "/registry/b", "1"); err != nil {
		t.Fatal(err)
	}
	for {
		<-w.Ready()
		events, _, err := w.Take(nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) > 0 {
			if len(events) != 1 || events[0].Key != "b" {
				t.Errorf("%+v", events)
			}
			return
		}
	}
}

// TestLimits checks that a commit above etcd's limits is rejected with the limit before it is sent, and that etcd
// accepts commits at the limits.
func TestLimits(t *testing.T) {
	e := storagetest.StartEtcd(t)
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL}}})
	const maxOps, maxBytes = 128, 3 << 19
	writes := func(n int) (all []storage.Write) {
		for i := range n {
			all = append(all, storage.Write{Key: fmt.Sprintf("%d/%d", n, i), Value: []byte("1")})
		}
		return all
	}
	large := func(size int) []storage.Write {
		return []storage.Write{{Key: fmt.Sprintf("large/%d", size), Value: make([]byte, size)}}
	}
	for _, accepted := range [][]storage.Write{writes(maxOps), large(maxBytes - 1000)} {
		if _, err := s.Commit(t.Context(), accepted); err != nil {
			t.Errorf("%d writes, first of %d bytes: %v", len(accepted), len(accepted[0].Value), err)
		}
	}
	before := s.Head().Revision()
	for unit, rejected := range map[string][]storage.Write{"objects": writes(maxOps + 1), "bytes": large(maxBytes)} {
		_, err := s.Commit(t.Context(), rejected)
		var size *storage.TooLargeError
		if !errors.As(err, &size) || !errors.Is(err, storage.ErrTooLarge) || size.Unit != unit ||
			size.Got <= size.Limit {
			t.Errorf("%d writes, first of %d bytes: %v", len(rejected), len(rejected[0].Value), err)
		}
	}
	if now, err := s.Fresh(t.Context()); err != nil || now.Revision() != before {
		t.Errorf("etcd is at revision %d, want %d, %v", now.Revision(), before, err)
	}
}

// TestCompactionTurns checks that one of several stores compacts in each interval, and that the other stores learn the
// revision.
func TestCompactionTurns(t *testing.T) {
	e := storagetest.StartEtcd(t)
	c := newClient(t, e.URL)
	var ticks [2]chan time.Time
	var idle [2]chan struct{} // receives before each turn
	var stores [2]*etcd.Store
	for i := range stores {
		ticks[i], idle[i] = make(chan time.Time), make(chan struct{}, 1)
		stores[i] = open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL}},
			After: func(time.Duration) <-chan time.Time {
				idle[i] <- struct{}{}
				return ticks[i]
			}})
		<-idle[i]
	}
	first := put(t, stores[0], storage.Write{Key: "a", Value: []byte("1")})
	for round := range 3 {
		for i := range stores {
			ticks[i] <- time.Time{}
			<-idle[i]
		}
		put(t, stores[0], storage.Write{Key: "a", Value: []byte{byte(round)}})
	}
	got, err := c.Get(t.Context(), "compact_rev_key")
	if err != nil || len(got.Kvs) != 1 || got.Kvs[0].Version > 3 {
		t.Fatalf("%v, %v", got, err)
	}
	for i, s := range stores {
		if _, err := s.Fresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		var compacted *storage.CompactedError
		if _, err := s.At(t.Context(), first.Revision); !errors.As(err, &compacted) {
			t.Errorf("store %d reads revision %d: %v", i, first.Revision, err)
		}
	}
}

// TestHistoryBytes checks that HistoryBytes limits the history in memory, and that older revisions are read from etcd.
func TestHistoryBytes(t *testing.T) {
	e := storagetest.StartEtcd(t)
	const limit = 64 << 10
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL}}, HistoryBytes: limit})
	first := put(t, s, storage.Write{Key: "a", Value: []byte("1")})
	w, err := s.Watch(t.Context(), "", first.Revision)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for range 100 {
		put(t, s, storage.Write{Key: "b", Value: make([]byte, 4<<10)})
	}
	wait(t, "the history stays too large", func() bool {
		put(t, s, storage.Write{Key: "b", Value: make([]byte, 4<<10)})
		u := s.Usage()
		return u.Cursors == 1 && u.Events > 1 && u.Bytes > 0 && u.Bytes <= limit+8<<10
	})
	if s.OldestInMemory() <= first.Revision {
		t.Errorf("revision %d is still in memory", first.Revision)
	}
	old, err := s.At(t.Context(), first.Revision)
	if err != nil || old.Get("b") != nil || old.Get("a") == nil {
		t.Errorf("At(%d): %v, %v", first.Revision, old, err)
	}
}

// proxy forwards connections to etcd until a test closes it.
type proxy struct {
	url, target, address string
	t                    *testing.T

	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
	dropping bool
}

func newProxy(t *testing.T, url string) *proxy {
	t.Helper()
	p := &proxy{t: t, target: strings.TrimPrefix(url, "http://"), address: "127.0.0.1:0"}
	p.open()
	p.address = p.listener.Addr().String()
	p.url = "http://" + p.address
	t.Cleanup(p.close)
	return p
}

func (p *proxy) open() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := net.Listen("tcp", p.address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.listener, p.dropping = l, false
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			p.connect(in)
		}
	}()
}

func (p *proxy) connect(in net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = in.Close()
		return
	}
	p.conns = append(p.conns, in, out)
	go func() { _, _ = io.Copy(out, in) }()
	go func() { _, _ = io.Copy(responseConn{in, p}, out) }()
}

// responseConn discards responses while the proxy drops them.
type responseConn struct {
	net.Conn
	p *proxy
}

func (a responseConn) Write(b []byte) (int, error) {
	a.p.mu.Lock()
	muted := a.p.dropping
	a.p.mu.Unlock()
	if muted {
		return len(b), nil
	}
	return a.Conn.Write(b)
}

// dropResponses discards all responses from now on.
func (p *proxy) dropResponses() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropping = true
}

func (p *proxy) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.listener.Close()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// TestWaitOutsidePrefix checks that all stores reach a revision that changed only keys outside the prefix. Wait does
// not return before etcd has the revision.
func TestWaitOutsidePrefix(t *testing.T) {
	e := storagetest.StartEtcd(t)
	c := newClient(t, e.URL)
	o := etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL}}}
	stores := []*etcd.Store{open(t, o), open(t, o)}
	other, err := c.Put(t.Context(), "/other", "1")
	if err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for i, s := range stores {
		if now, err := s.Wait(limited, other.Header.Revision); err != nil {
			t.Errorf("store %d: %v, %v", i, now, err)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if now, err := stores[0].Wait(short, other.Header.Revision+1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait for a later revision: %v, %v", now, err)
	}
}
