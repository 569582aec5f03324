package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// transaction is a commit in the form of an etcd transaction.
type transaction struct {
	compares []clientv3.Cmp
	changes  []clientv3.Op
	member   *registration // of this server, which the first compare requires; nil before Join
	barrier  bool          // other servers must acknowledge the commit
	values   [][]byte      // the encoded value of each write; nil for a deletion
	reads    []clientv3.Op // one read for each compare, used if a compare fails
}

// Commit implements storage.Store. It is one transaction, so all writes get the same revision.
func (s *Store) Commit(ctx context.Context, writes []storage.Write, guards ...storage.Guard) ([]*storage.Event, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := storage.Validate(writes); err != nil {
		return nil, err
	}
	s.commitMu.RLock()
	defer s.commitMu.RUnlock()
	if s.closing {
		return nil, storage.ErrClosed
	}
	if err := s.Valid(); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.Timeout)
	defer cancel()
	t, err := s.transaction(limited, writes, guards)
	if err != nil {
		return nil, err
	}
	if err := s.checkSize(&t, writes, guards); err != nil {
		return nil, err
	}
	previous := s.expectedRecords(writes)
	s.inFlight.Add(writes, t.values)
	defer s.inFlight.Remove(writes)
	resp, err := s.send(limited, &t)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) { // the lease has ended since another write has requested it
		s.leases.Forget()
		if t, err = s.transaction(limited, writes, guards); err != nil {
			return nil, err
		}
		resp, err = s.send(limited, &t)
	}
	var events []*storage.Event
	switch {
	case err != nil:
		if events, err = s.resolve(limited, writes, previous, err); err != nil {
			return nil, err
		}
	case !resp.Succeeded:
		return nil, s.conflict(resp, &t, writes, guards)
	default:
		_, _ = s.waitFor(limited, resp.Header.Revision) // on a timeout, the commit has still succeeded
		events = s.committedEvents(writes, previous, resp.Header.Revision)
	}
	if t.barrier {
		began := time.Now()
		err := s.waitForMembers(limited, events[0].Revision)
		if s.options.ObserveBarrier(time.Since(began)); err != nil {
			return nil, fmt.Errorf("%w: another server has not applied the commit: %w", storage.ErrInDoubt, err)
		}
	}
	return events, nil
}

// send sends a transaction. If a member rejects it because the member has no leader, send tries the next one, for half
// of the timeout.
func (s *Store) send(ctx context.Context, t *transaction) (resp *clientv3.TxnResponse, err error) {
	retry, cancel := context.WithTimeout(ctx, s.options.Timeout/2)
	defer cancel()
	for {
		resp, err = s.client.Txn(ctx).If(t.compares...).Then(t.changes...).Else(t.reads...).Commit()
		if !errors.Is(err, rpctypes.ErrNoLeader) {
			return resp, err
		}
		select {
		case <-retry.Done():
			return nil, err
		case <-time.After(reconnectDelay):
		}
	}
}

// transaction builds the transaction. It compares the registration of this server first, then the guards, and then the
// expected revisions of the writes.
func (s *Store) transaction(
	ctx context.Context, writes []storage.Write, guards []storage.Guard,
) (t transaction, err error) {
	m := s.member.Load()
	if m != nil {
		t.member = m.current.Load()
		t.compares = append(t.compares, clientv3.Compare(clientv3.CreateRevision(t.member.key), "=", t.member.created))
		t.reads = append(t.reads, clientv3.OpGet(t.member.key, clientv3.WithKeysOnly()))
	}
	for i := range guards {
		g, key := &guards[i], s.etcdKey(guards[i].Key)
		if !g.Prefix {
			t.expect(key, g.Revision)
			continue
		}
		end := clientv3.GetPrefixRangeEnd(key)
		t.compares = append(t.compares, clientv3.Compare(clientv3.ModRevision(key), "<", g.Revision+1).WithRange(end))
		t.reads = append(t.reads, clientv3.OpGet(key, clientv3.WithRange(end), clientv3.WithLimit(1),
			clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend)))
	}
	for i := range writes {
		w, key := &writes[i], s.etcdKey(writes[i].Key)
		t.expect(key, w.Expected)
		value, err := s.encode(w)
		if err != nil {
			return t, err
		}
		t.values = append(t.values, value)
		t.barrier = t.barrier || m != nil && s.everywhere(w.Key)
		if value == nil {
			t.changes = append(t.changes, clientv3.OpDelete(key))
			continue
		}
		var lease clientv3.LeaseID
		if w.TTL > 0 {
			if lease, err = s.leases.For(ctx, s.client, s.options.Now(), w.TTL); err != nil {
				if errors.Is(err, rpctypes.ErrNoSpace) {
					return t, rejection(err)
				}
				return t, unavailable(err)
			}
		}
		t.changes = append(t.changes, clientv3.OpPut(key, string(value), clientv3.WithLease(lease)))
	}
	if t.barrier {
		t.changes = append(t.changes, clientv3.OpPut(s.etcdKey(s.options.Base+barrierKey), m.id))
	}
	return t, nil
}

// opOverhead is the approximate number of bytes that a request needs for an operation in addition to its key and value.
const opOverhead = 32

// checkSize returns a *storage.TooLargeError if etcd would reject the transaction because of its size.
func (s *Store) checkSize(t *transaction, writes []storage.Write, guards []storage.Guard) error {
	if n := len(t.compares); n > s.options.MaxOps {
		return &storage.TooLargeError{Got: n, Limit: s.options.MaxOps, Unit: "objects"}
	}
	size := 0
	for i := range guards {
		size += 2 * (len(guards[i].Key) + opOverhead) // in a compare and a read
	}
	for i := range writes {
		size += 3*(len(writes[i].Key)+opOverhead) + len(t.values[i])
	}
	if size > s.options.MaxBytes {
		return &storage.TooLargeError{Got: size, Limit: s.options.MaxBytes, Unit: "bytes"}
	}
	return nil
}

// everywhere reports whether a write of a key must be applied by all servers.
func (s *Store) everywhere(key string) bool {
	return slices.ContainsFunc(s.options.Everywhere, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// expect adds the condition that a key was last changed at revision, or does not exist if revision is 0.
func (t *transaction) expect(key string, revision int64) {
	t.compares = append(t.compares, clientv3.Compare(clientv3.ModRevision(key), "=", revision))
	t.reads = append(t.reads, clientv3.OpGet(key))
}

// conflict returns the *storage.ConflictError of a transaction whose conditions did not hold, or an ErrUnavailable if
// the registration of this server has expired.
func (s *Store) conflict(
	resp *clientv3.TxnResponse, t *transaction, writes []storage.Write, guards []storage.Guard,
) error {
	responses := resp.Responses
	if t.member != nil {
		if kvs := responses[0].GetResponseRange().Kvs; len(kvs) == 0 || kvs[0].CreateRevision != t.member.created {
			return fmt.Errorf("%w: the registration of the server in etcd has expired", storage.ErrUnavailable)
		}
		responses = responses[1:]
	}
	for i, r := range responses {
		if c, holds := s.checkCondition(r.GetResponseRange(), i, writes, guards); !holds {
			c.Revision = resp.Header.Revision
			key := c.Key
			if c.Current != nil {
				key = c.Current.Key // also of a prefix
			}
			s.checkRecord(key, c.Revision, modified(c.Current))
			return c
		}
	}
	return fmt.Errorf("%w: etcd has rejected a transaction although all its conditions hold", storage.ErrUnavailable)
}

// checkCondition reports whether the i-th condition holds for the records that its read has found.
func (s *Store) checkCondition(
	found *pb.RangeResponse, i int, writes []storage.Write, guards []storage.Guard,
) (c *storage.ConflictError, holds bool) {
	c = &storage.ConflictError{}
	if len(found.GetKvs()) > 0 {
		c.Current = s.record(found.Kvs[0])
	}
	current := modified(c.Current)
	if i < len(guards) {
		g := &guards[i]
		c.Key, c.Guard = g.Key, true
		return c, current == g.Revision || g.Prefix && current < g.Revision
	}
	w := &writes[i-len(guards)]
	c.Key = w.Key
	return c, current == w.Expected
}

// expectedRecords returns the records that writes expect, or nil for those that the head does not contain.
func (s *Store) expectedRecords(writes []storage.Write) []*storage.Record {
	head, previous := s.Head(), make([]*storage.Record, len(writes))
	for i := range writes {
		if r := head.Get(writes[i].Key); r != nil && r.Modified == writes[i].Expected {
			previous[i] = r
		}
	}
	return previous
}

// committedEvents returns the events of writes that succeeded at revision.
func (s *Store) committedEvents(writes []storage.Write, previous []*storage.Record, revision int64) []*storage.Event {
	head, events := s.Head(), make([]*storage.Event, len(writes))
	for i := range writes {
		w := &writes[i]
		e := &storage.Event{Revision: revision, Key: w.Key, Previous: previous[i]}
		events[i] = e
		current := head.Get(w.Key)
		if w.Value == nil {
			if current != nil {
				s.checkRecord(w.Key, revision, 0)
			}
			continue
		}
		if e.Record = current; modified(current) == revision {
			continue
		}
		// The record has been overwritten, or is not in the head yet.
		s.checkRecord(w.Key, revision, revision)
		e.Record = &storage.Record{Key: w.Key, Value: w.Value, Created: revision, Modified: revision}
		if previous[i] != nil {
			e.Record.Created = previous[i].Created
		}
		if w.Derived != nil {
			e.Record.Derived.Store(w.Derived)
		}
	}
	return events
}

// resolve determines the outcome of a commit whose response was lost. It returns the events if the commit has
// succeeded, an error if it has failed, and storage.ErrInDoubt if the outcome is unknown.
func (s *Store) resolve(
	ctx context.Context, writes []storage.Write, previous []*storage.Record, cause error,
) ([]*storage.Event, error) {
	if err := rejection(cause); err != nil {
		return nil, err
	}
	head, err := s.Fresh(ctx)
	if err == nil {
		if revision := revisionOf(head, writes); revision != 0 {
			return s.committedEvents(writes, previous, revision), nil
		}
	}
	// The commit may still be in flight, so its absence proves nothing.
	return nil, fmt.Errorf("%w: %w", storage.ErrInDoubt, cause)
}

// revisionOf returns the revision at which the given writes have become part of head. It returns 0 if head does not
// show the revision.
func revisionOf(head *storage.Snapshot, writes []storage.Write) (revision int64) {
	for i := range writes {
		w, now := &writes[i], head.Get(writes[i].Key)
		if w.Value == nil {
			if now != nil {
				return 0
			}
			continue
		}
		if now == nil || now.Modified <= w.Expected || !bytes.Equal(now.Value, w.Value) ||
			revision != 0 && now.Modified != revision {
			return 0
		}
		revision = now.Modified
	}
	return revision
}
