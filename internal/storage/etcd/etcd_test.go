package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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

// raw is a client of etcd beside the stores.
func raw(t *testing.T, url string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{url}})
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

// Keys lie under the prefix, in the place of the base; what is beside it is none of ours, but Fresh counts its revisions.
func TestPrefix(t *testing.T) {
	e := storagetest.StartEtcd(t)
	c := raw(t, e.URL)
	s := open(t, etcd.Options{Servers: []string{e.URL}, Base: "/registry/", Prefix: "/mine/"})
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
		t.Errorf("at %d, want %d: %v", now.Revision(), other.Header.Revision, err)
	}
}

// Keys that live about as long share a lease, and go when it ends. A write without a time to live takes it off.
func TestLeases(t *testing.T) {
	e := storagetest.StartEtcd(t)
	c := raw(t, e.URL)
	s := open(t, etcd.Options{Servers: []string{e.URL}})
	lease := func(key string) int64 {
		got, err := c.Get(t.Context(), "/registry/"+key)
		if err != nil || len(got.Kvs) != 1 {
			t.Fatal(got, err)
		}
		return got.Kvs[0].Lease
	}
	hour := put(t, s, storage.Write{Key: "hour", Value: []byte("1"), TTL: time.Hour})
	put(t, s, storage.Write{Key: "hour too", Value: []byte("1"), TTL: time.Hour})
	put(t, s, storage.Write{Key: "day", Value: []byte("1"), TTL: 24 * time.Hour})
	if lease("hour") == 0 || lease("hour") != lease("hour too") || lease("day") == lease("hour") {
		t.Errorf("leases %d, %d, %d", lease("hour"), lease("hour too"), lease("day"))
	}
	if left := time.Until(hour.Record.Expires); left < 59*time.Minute || left > 62*time.Minute {
		t.Errorf("it expires in %v", left)
	}
	put(t, s, storage.Write{Key: "hour", Value: []byte("2")})
	if lease("hour") != 0 || !s.Head().Get("hour").Expires.IsZero() {
		t.Error("it still expires")
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

// What is to be encrypted lies so in etcd.
func TestCodec(t *testing.T) {
	e := storagetest.StartEtcd(t)
	seal := storage.Codec{
		Seal: func(key string, value []byte) ([]byte, error) { return []byte(key + "!" + string(value)), nil },
		Open: func(key string, data []byte) ([]byte, error) {
			value, ok := strings.CutPrefix(string(data), key+"!")
			if !ok {
				return nil, errors.New("not sealed")
			}
			return []byte(value), nil
		},
	}
	o := etcd.Options{Servers: []string{e.URL}, Codecs: storage.Codecs{"secrets/": seal}}
	s := open(t, o)
	known := new(int)
	made := put(t, s, storage.Write{Key: "secrets/a", Value: []byte("1"), Derived: known})
	if string(made.Record.Value) != "1" || made.Record.Derived.Load() != any(known) {
		t.Errorf("%+v", made.Record)
	}
	got, err := raw(t, e.URL).Get(t.Context(), "/registry/secrets/a")
	if err != nil || string(got.Kvs[0].Value) != "secrets/a!1" {
		t.Errorf("%v, %v", got, err)
	}
	if r := open(t, o).Head().Get("secrets/a"); string(r.Value) != "1" {
		t.Errorf("%s", r.Value)
	}
	if _, err := raw(t, e.URL).Put(t.Context(), "/registry/secrets/b", "plain"); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Open(t.Context(), etcd.Options{Servers: []string{e.URL}, Prefix: "/registry/", Codecs: o.Codecs}); err == nil || !strings.Contains(err.Error(), "secrets/b") {
		t.Errorf("opened with what is not sealed: %v", err)
	}
}

// A change that etcd has forgotten before this process heard of it ends the cursors; the state is right all the same.
func TestCompactedWhileAway(t *testing.T) {
	e := storagetest.StartEtcd(t)
	p := newProxy(t, e.URL)
	s := open(t, etcd.Options{Servers: []string{p.url}})
	first := put(t, s, storage.Write{Key: "a", Value: []byte("1")})
	same := put(t, s, storage.Write{Key: "same", Value: []byte("1")}).Record
	w, err := s.Watch(t.Context(), "", first.Revision)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for seen := int64(0); seen < same.Modified; { // all that there was
		<-w.Ready()
		if _, seen, err = w.Take(nil); err != nil {
			t.Fatal(err)
		}
	}
	p.close()
	c := raw(t, e.URL)
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
		t.Errorf("%d records, a is %v", now.Count("", ""), now.Get("a"))
	}
	for err == nil {
		<-w.Ready()
		_, _, err = w.Take(nil)
	}
	if !storage.MissedEvents(err) {
		t.Errorf("the cursor ended with %v", err)
	}
	var gone *storage.CompactedError
	if _, err := s.Watch(t.Context(), "", first.Revision); !errors.As(err, &gone) {
		t.Errorf("a watch from before: %v", err)
	}
	put(t, s, storage.Write{Key: "a", Value: []byte("3")})
}

// A commit whose answer is lost is found to have been carried out, or left in doubt; it is never said not to have been.
func TestLostAnswer(t *testing.T) {
	e := storagetest.StartEtcd(t)
	direct := open(t, etcd.Options{Servers: []string{e.URL}})
	p := newProxy(t, e.URL)
	s := open(t, etcd.Options{Servers: []string{p.url}})
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
		p.mute()
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
		for len(events) == 0 { // until it has been carried out
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

// While etcd is away, that is what is said, soon enough.
func TestAway(t *testing.T) {
	e := storagetest.StartEtcd(t)
	put(t, open(t, etcd.Options{Servers: []string{e.URL}}), storage.Write{Key: "a", Value: []byte("1")})
	s := open(t, etcd.Options{Servers: []string{e.URL}, Timeout: time.Second})
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
		t.Errorf("what has been seen is gone, or it has failed: %v", s.Failed())
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
	if _, err := etcd.Open(t.Context(), etcd.Options{Servers: []string{"http://127.0.0.1:1"}, Prefix: "/x/", Timeout: 100 * time.Millisecond}); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("no etcd there: %v", err)
	}
}

// An etcd that has lost data is not followed: what this process has told of would be gone.
func TestRestored(t *testing.T) {
	e, empty := storagetest.StartEtcd(t), storagetest.StartEtcd(t)
	p := newProxy(t, e.URL)
	s := open(t, etcd.Options{Servers: []string{p.url}, Timeout: 4 * time.Second})
	for range 5 {
		put(t, s, storage.Write{Key: "a", Value: []byte("1")})
	}
	p.close()
	p.to = strings.TrimPrefix(empty.URL, "http://")
	p.open()
	for s.Failed() == nil {
		if _, err := s.Fresh(t.Context()); err == nil {
			t.Fatal("nothing is wrong")
		}
	}
	if _, err := s.Commit(t.Context(), []storage.Write{{Key: "b", Value: []byte("1")}}); !errors.Is(err, storage.ErrFailed) {
		t.Errorf("Commit: %v", err)
	}
}

// proxy is a way to etcd that a test may close.
type proxy struct {
	url, to, at string
	t           *testing.T

	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
	muted    bool
}

func newProxy(t *testing.T, url string) *proxy {
	t.Helper()
	p := &proxy{t: t, to: strings.TrimPrefix(url, "http://"), at: "127.0.0.1:0"}
	p.open()
	p.at = p.listener.Addr().String()
	p.url = "http://" + p.at
	t.Cleanup(p.close)
	return p
}

func (p *proxy) open() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := net.Listen("tcp", p.at)
	if err != nil {
		p.t.Fatal(err)
	}
	p.listener, p.muted = l, false
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
	out, err := net.Dial("tcp", p.to)
	if err != nil {
		_ = in.Close()
		return
	}
	p.conns = append(p.conns, in, out)
	go func() { _, _ = io.Copy(out, in) }()
	go func() { _, _ = io.Copy(answers{in, p}, out) }()
}

// answers drops what is written while the proxy is muted.
type answers struct {
	net.Conn
	p *proxy
}

func (a answers) Write(b []byte) (int, error) {
	a.p.mu.Lock()
	muted := a.p.muted
	a.p.mu.Unlock()
	if muted {
		return len(b), nil
	}
	return a.Conn.Write(b)
}

// mute loses all answers from now on.
func (p *proxy) mute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.muted = true
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
