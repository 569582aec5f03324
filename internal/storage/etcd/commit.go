package etcd

import (
	"bytes"
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// transaction is a commit in the form of an etcd transaction.
type transaction struct {
	compares []clientv3.Cmp
	changes  []clientv3.Op
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
	if err := s.Failed(); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.Timeout)
	defer cancel()
	t, err := s.transaction(limited, writes, guards)
	if err != nil {
		return nil, unavailable(err)
	}
	previous := s.expectedRecords(writes)
	s.inFlight.add(writes)
	defer s.inFlight.remove(writes)
	resp, err := s.client.Txn(limited).If(t.compares...).Then(t.changes...).Else(t.reads...).Commit()
	if err != nil {
		return s.resolve(limited, writes, previous, err)
	}
	if !resp.Succeeded {
		return nil, s.conflict(resp, writes, guards)
	}
	_, _ = s.waitFor(limited, resp.Header.Revision) // on a timeout, the commit has still succeeded
	return s.committedEvents(writes, previous, resp.Header.Revision), nil
}

// transaction builds the transaction. It compares the guards first, and then the expected revisions of the writes.
func (s *Store) transaction(
	ctx context.Context, writes []storage.Write, guards []storage.Guard,
) (t transaction, err error) {
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
		if w.Value == nil {
			t.changes = append(t.changes, clientv3.OpDelete(key))
			continue
		}
		var lease clientv3.LeaseID
		if w.TTL > 0 {
			if lease, err = s.lease(ctx, w.TTL); err != nil {
				return t, err
			}
		}
		t.changes = append(t.changes, clientv3.OpPut(key, string(w.Value), clientv3.WithLease(lease)))
	}
	return t, nil
}

// expect adds the condition that a key was last changed at revision, or does not exist if revision is 0.
func (t *transaction) expect(key string, revision int64) {
	t.compares = append(t.compares, clientv3.Compare(clientv3.ModRevision(key), "=", revision))
	t.reads = append(t.reads, clientv3.OpGet(key))
}

// conflict returns the *storage.ConflictError of a transaction whose conditions did not hold.
func (s *Store) conflict(resp *clientv3.TxnResponse, writes []storage.Write, guards []storage.Guard) error {
	for i, r := range resp.Responses {
		if c, holds := s.checkCondition(r.GetResponseRange(), i, writes, guards); !holds {
			c.Revision = resp.Header.Revision
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
	var modified int64
	if len(found.GetKvs()) > 0 {
		c.Current = s.record(found.Kvs[0])
		modified = c.Current.Modified
	}
	if i < len(guards) {
		g := &guards[i]
		c.Key, c.Guard = g.Key, true
		return c, modified == g.Revision || g.Prefix && modified < g.Revision
	}
	w := &writes[i-len(guards)]
	c.Key = w.Key
	return c, modified == w.Expected
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
		if w.Value == nil {
			continue
		}
		if e.Record = head.Get(w.Key); e.Record != nil && e.Record.Modified == revision {
			continue
		}
		// The record has been overwritten, or is not in the head yet.
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
