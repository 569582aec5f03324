package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/etcd/boottime"
)

// Keys below Base that servers use for their coordination. No kind has such keys.
const (
	// membersKey is the prefix of the registrations. The value of a registration is the revision up to which its server
	// has applied all changes.
	membersKey = "trellis/members/"
	// barrierKey is written by each commit below Options.Everywhere. Its value is the ID of the writing server.
	barrierKey = "trellis/barrier"
)

// memberTTL is the validity of a registration. A server renews it three times in this time.
const memberTTL = 5 * time.Second

// deadlineSlack is how much earlier a server regards its own registration as expired than etcd. It covers clocks that
// run at different speeds.
const deadlineSlack = 100 * time.Millisecond

// member is this server's membership in the group of servers that share an etcd cluster. A commit below
// Options.Everywhere returns after each registered server has applied it. A server without a valid registration must
// not answer, because such commits do not wait for it.
type member struct {
	store   *Store
	id      string
	applied func(ctx context.Context, revision int64) error
	current atomic.Pointer[registration]
	barrier atomic.Int64  // the newest revision that this server must acknowledge
	wake    chan struct{} // receives a value when barrier has changed
	// acknowledging is held by acknowledge, so that the revision in a registration never decreases.
	acknowledging sync.Mutex
}

// registration is a key with a lease in etcd.
type registration struct {
	key      string // in etcd
	lease    clientv3.LeaseID
	created  int64        // create revision of the key
	deadline atomic.Int64 // boottime.Now at which the server stops answering; 0 before all earlier writes are applied
}

// Join registers the server and keeps the registration until Close. The function applied waits until the process has
// applied all changes up to a revision. When Join returns, the server has applied all commits below Options.Everywhere
// that have returned.
func (s *Store) Join(ctx context.Context, applied func(ctx context.Context, revision int64) error) error {
	m := &member{store: s, id: rand.Text(), applied: applied, wake: make(chan struct{}, 1)}
	m.current.Store(&registration{})
	s.member.Store(m) // before the registration, so that no later barrier is missed
	if err := m.register(ctx); err != nil {
		return s.startError("register the server in", err)
	}
	s.serving.Go(m.renewals)
	s.serving.Go(m.acknowledgements)
	return nil
}

// Valid returns an ErrUnavailable while the server has no valid registration, an ErrFailed after the store has failed,
// and nil otherwise.
func (s *Store) Valid() error {
	if err := s.Failed(); err != nil {
		return err
	}
	m := s.member.Load()
	if m == nil || int64(boottime.Now()) < m.current.Load().deadline.Load() {
		return nil
	}
	return fmt.Errorf("%w: the server could not renew its registration in etcd", storage.ErrUnavailable)
}

// Servers returns the number of registered servers.
func (s *Store) Servers() int { return s.Head().Count(s.options.Base+membersKey, "") }

// register creates a registration, and waits until the server has applied all changes before it.
func (m *member) register(ctx context.Context) error {
	s := m.store
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	var r *registration
	var valid int64
	if err := retry(ctx, func() (err error) { r, valid, err = m.create(ctx); return err }); err != nil {
		return err
	}
	m.current.Store(r)
	if _, err := s.waitFor(ctx, r.created); err != nil {
		return fmt.Errorf("receive the changes up to revision %d: %w", r.created, err)
	}
	if err := retry(ctx, func() error { return m.acknowledge(ctx, r) }); err != nil {
		return err
	}
	r.deadline.Store(valid)
	return nil
}

// requestTimeout limits requests that are repeated. It is less than etcd's own limit: a member that has just lost its
// connection to the leader loses requests, and responds seven seconds later.
const requestTimeout = memberTTL / 2

// create tries to create a registration, and returns its deadline.
func (m *member) create(ctx context.Context) (r *registration, valid int64, err error) {
	s := m.store
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	began := boottime.Now()
	lease, err := s.client.Grant(ctx, int64(memberTTL/time.Second))
	if err != nil {
		return nil, 0, fmt.Errorf("create a lease: %w", err)
	}
	key := s.etcdKey(s.options.Base + membersKey + rand.Text())
	put, err := s.client.Put(ctx, key, strconv.FormatInt(s.Head().Revision(), 10), clientv3.WithLease(lease.ID))
	if err != nil {
		return nil, 0, fmt.Errorf("create the registration: %w", err)
	}
	return &registration{key: key, lease: lease.ID, created: put.Header.Revision}, deadline(began, lease.TTL), nil
}

// deadline returns the end of a registration whose last renewal began at a time. ttl is in seconds.
func deadline(began time.Duration, ttl int64) int64 {
	return int64(began + time.Duration(ttl)*time.Second - deadlineSlack)
}

// acknowledge writes the revision up to which this server has applied all changes. It waits until this includes all
// barriers and changes before the registration.
func (m *member) acknowledge(ctx context.Context, r *registration) error {
	m.acknowledging.Lock()
	defer m.acknowledging.Unlock()
	revision := max(m.barrier.Load(), r.created)
	if err := m.applied(ctx, revision); err != nil {
		return fmt.Errorf("apply the changes up to revision %d: %w", revision, err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := m.store.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(r.key), "=", r.created)).
		Then(clientv3.OpPut(r.key, strconv.FormatInt(revision, 10), clientv3.WithLease(r.lease))).Commit()
	return err
}

// renewals renews the registration until Close or until the store has failed, and then removes it. If the registration
// has expired, it creates a new one.
func (m *member) renewals() {
	s := m.store
	defer m.revoke()
	tick := time.NewTicker(memberTTL / 3)
	defer tick.Stop()
	for s.Failed() == nil {
		select {
		case <-s.lifetime.Done():
			return
		case <-tick.C:
		}
		if err := m.renew(); err != nil && s.lifetime.Err() == nil {
			s.options.Logger.Warn("cannot renew the registration of the server in etcd", "err", err)
		}
	}
}

// revoke removes the registration. Without this, other servers wait until it expires.
func (m *member) revoke() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = m.store.client.Revoke(ctx, m.current.Load().lease)
}

func (m *member) renew() error {
	s, r := m.store, m.current.Load()
	if err := m.follows(); err != nil {
		return err
	}
	began, previous := boottime.Now(), r.deadline.Load()
	ctx, cancel := context.WithTimeout(s.lifetime, requestTimeout)
	defer cancel()
	defer s.expectResponse().Stop()
	resp, err := s.client.KeepAliveOnce(ctx, r.lease)
	switch {
	case err == nil && previous > 0 && r.deadline.CompareAndSwap(previous, deadline(began, resp.TTL)):
		return nil
	case err == nil || errors.Is(err, rpctypes.ErrLeaseNotFound):
		return m.register(s.lifetime)
	}
	return err
}

// acknowledgements acknowledges the writes of other servers until Close or until the store has failed.
func (m *member) acknowledgements() {
	s := m.store
	for s.Failed() == nil {
		select {
		case <-s.lifetime.Done():
			return
		case <-m.wake:
		}
		ctx, cancel := context.WithTimeout(s.lifetime, s.options.Timeout)
		if err := m.acknowledge(ctx, m.current.Load()); err != nil && s.lifetime.Err() == nil {
			s.options.Logger.Warn("cannot acknowledge a write of another server in etcd", "err", err)
			m.signal()
			select {
			case <-s.lifetime.Done():
			case <-time.After(reconnectDelay):
			}
		}
		cancel()
	}
}

func (m *member) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// observe acknowledges the barriers of other servers among events that were published. If etcd has deleted the
// registration of this server before its time, the server is not valid any more.
func (m *member) observe(events []*storage.Event) {
	barrier, r := m.store.options.Base+barrierKey, m.current.Load()
	own := m.store.storageKey([]byte(r.key))
	for _, e := range events {
		switch {
		case e.Key == own && e.Record == nil:
			r.deadline.Store(0)
		case e.Key == own && appliedRevision(e.Record) < m.barrier.Load():
			m.signal() // etcd may have executed an earlier acknowledgement, which had been repeated, only now
		case e.Key == barrier && e.Record != nil && string(e.Record.Value) != m.id:
			m.require(e.Revision)
		}
	}
}

// appliedRevision returns the revision in a registration. It returns 0, so that writes wait, if the value is invalid.
func appliedRevision(r *storage.Record) int64 {
	revision, err := strconv.ParseInt(string(r.Value), 10, 64)
	if err != nil {
		return 0
	}
	return revision
}

// require makes the server acknowledge a revision.
func (m *member) require(revision int64) {
	m.barrier.Store(revision)
	m.signal()
}

// waitForMembers waits until all other registered servers have acknowledged a revision.
func (s *Store) waitForMembers(ctx context.Context, revision int64) error {
	for {
		head := s.Head()
		if head.Revision() >= revision && s.acknowledged(head, revision) {
			return nil
		}
		if _, err := s.Replica.Wait(ctx, max(revision, head.Revision()+1)); err != nil {
			return err
		}
	}
}

// acknowledged reports whether all other servers that are registered in head have acknowledged a revision.
func (s *Store) acknowledged(head *storage.Snapshot, revision int64) bool {
	own := ""
	if m := s.member.Load(); m != nil {
		own = s.storageKey([]byte(m.current.Load().key))
	}
	for r := range head.Walk(s.options.Base+membersKey, "") {
		if r.Key != own && appliedRevision(r) < revision {
			return false
		}
	}
	return true
}

// follows returns an error if the watch of etcd makes no progress. The registration of the server then expires, because
// the server cannot acknowledge the writes of other servers. If etcd has a newer revision, another watch is started.
func (m *member) follows() error {
	s := m.store
	ctx, cancel := context.WithTimeout(s.lifetime, requestTimeout)
	defer cancel()
	before := s.Head().Revision()
	newest, err := s.revisions.read(ctx, s.revision)
	if err == nil {
		_, err = s.waitFor(ctx, newest)
		if end := s.endWatch.Load(); err != nil && end != nil && s.Head().Revision() == before {
			(*end)()
		}
	}
	if err == nil || s.Head().Revision() > before {
		return nil
	}
	return fmt.Errorf("the watch of etcd makes no progress: %w", err)
}
