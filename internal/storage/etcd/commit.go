package etcd

import (
	"bytes"
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// transaction is a commit as etcd is asked to carry it out.
type transaction struct {
	compares []clientv3.Cmp
	changes  []clientv3.Op
	looks    []clientv3.Op // at what each compare is about, where one of them does not hold
}

// Commit is storage.Store's, as one transaction: all writes get one revision.
func (s *Store) Commit(ctx context.Context, writes []storage.Write, guards ...storage.Guard) ([]*storage.Event, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := storage.Validate(writes); err != nil {
		return nil, err
	}
	s.committing.RLock()
	defer s.committing.RUnlock()
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
	previous := s.replaced(writes)
	s.underway.add(writes)
	defer s.underway.remove(writes)
	resp, err := s.client.Txn(limited).If(t.compares...).Then(t.changes...).Else(t.looks...).Commit()
	if err != nil {
		return s.doubt(limited, writes, previous, err)
	}
	if !resp.Succeeded {
		return nil, s.conflict(resp, writes, guards)
	}
	_, _ = s.reach(limited, resp.Header.Revision) // it is carried out, whether or not it is seen here in time
	return s.committed(writes, previous, resp.Header.Revision), nil
}

// transaction compares what the guards and the writes rely on, in this order.
func (s *Store) transaction(ctx context.Context, writes []storage.Write, guards []storage.Guard) (t transaction, err error) {
	for i := range guards {
		g, key := &guards[i], s.key(guards[i].Key)
		if !g.Prefix {
			t.expect(key, g.Revision)
			continue
		}
		end := clientv3.GetPrefixRangeEnd(key)
		t.compares = append(t.compares, clientv3.Compare(clientv3.ModRevision(key), "<", g.Revision+1).WithRange(end))
		t.looks = append(t.looks, clientv3.OpGet(key, clientv3.WithRange(end), clientv3.WithLimit(1),
			clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend)))
	}
	for i := range writes {
		w, key := &writes[i], s.key(writes[i].Key)
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
		value, err := s.options.Codecs.Seal(w.Key, w.Value)
		if err != nil {
			return t, err
		}
		t.changes = append(t.changes, clientv3.OpPut(key, string(value), clientv3.WithLease(lease)))
	}
	return t, nil
}

// expect makes it a condition that a key was last changed at revision, or is not there if that is 0.
func (t *transaction) expect(key string, revision int64) {
	t.compares = append(t.compares, clientv3.Compare(clientv3.ModRevision(key), "=", revision))
	t.looks = append(t.looks, clientv3.OpGet(key))
}

// conflict is the error for a transaction of which a compare did not hold.
func (s *Store) conflict(resp *clientv3.TxnResponse, writes []storage.Write, guards []storage.Guard) error {
	for i, r := range resp.Responses {
		c, holds, err := s.judge(r.GetResponseRange(), i, writes, guards)
		if err != nil {
			return err
		}
		if !holds {
			c.Revision = resp.Header.Revision
			return c
		}
	}
	return fmt.Errorf("%w: etcd has refused a transaction of which all conditions hold", storage.ErrUnavailable)
}

// judge looks at what the i-th compare is about.
func (s *Store) judge(found *pb.RangeResponse, i int, writes []storage.Write, guards []storage.Guard) (c *storage.ConflictError, holds bool, err error) {
	c = &storage.ConflictError{}
	var modified int64
	if len(found.GetKvs()) > 0 {
		if c.Current, err = s.record(found.Kvs[0]); err != nil {
			return nil, false, err
		}
		modified = c.Current.Modified
	}
	if i < len(guards) {
		g := &guards[i]
		c.Key, c.Guard = g.Key, true
		return c, modified == g.Revision || g.Prefix && modified < g.Revision, nil
	}
	w := &writes[i-len(guards)]
	c.Key = w.Key
	return c, modified == w.Expected, nil
}

// replaced are the records that writes expect, as far as they have been seen here.
func (s *Store) replaced(writes []storage.Write) []*storage.Record {
	head, previous := s.Head(), make([]*storage.Record, len(writes))
	for i := range writes {
		if r := head.Get(writes[i].Key); r != nil && r.Modified == writes[i].Expected {
			previous[i] = r
		}
	}
	return previous
}

// committed are the events of writes that have been carried out at a revision.
func (s *Store) committed(writes []storage.Write, previous []*storage.Record, revision int64) []*storage.Event {
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
		e.Record = &storage.Record{Key: w.Key, Value: w.Value, Created: revision, Modified: revision} // overwritten, or not seen yet
		if previous[i] != nil {
			e.Record.Created = previous[i].Created
		}
		if w.Derived != nil {
			e.Record.Derived.Store(w.Derived)
		}
	}
	return events
}

// doubt finds out, as far as that can be, what has become of a commit whose answer was lost.
func (s *Store) doubt(ctx context.Context, writes []storage.Write, previous []*storage.Record, cause error) ([]*storage.Event, error) {
	if err := refused(cause); err != nil {
		return nil, err
	}
	head, err := s.Fresh(ctx)
	if err == nil {
		if revision := carriedOut(head, writes); revision != 0 {
			return s.committed(writes, previous, revision), nil
		}
	}
	// That it is not there says nothing: it may still be on its way.
	return nil, fmt.Errorf("%w: %w", storage.ErrInDoubt, cause)
}

// carriedOut is the revision of writes that can be seen in a state; 0 if they cannot.
func carriedOut(head *storage.Snapshot, writes []storage.Write) (revision int64) {
	for i := range writes {
		w, now := &writes[i], head.Get(writes[i].Key)
		if w.Value == nil {
			if now != nil {
				return 0
			}
			continue
		}
		if now == nil || now.Modified <= w.Expected || !bytes.Equal(now.Value, w.Value) || revision != 0 && now.Modified != revision {
			return 0
		}
		revision = now.Modified
	}
	return revision
}
