package etcd

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// pageSize is the number of keys that one request reads.
const pageSize = 1000

// readPages reads all keys below the prefix at a revision, where 0 means now. It returns the revision.
func (s *Store) readPages(ctx context.Context, revision int64, add func(*mvccpb.KeyValue) error) (int64, error) {
	key, end := s.options.Prefix, clientv3.GetPrefixRangeEnd(s.options.Prefix)
	for {
		limited, cancel := context.WithTimeout(ctx, s.options.Timeout)
		resp, err := s.client.Get(limited, key,
			clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
		cancel()
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			if err := add(kv); err != nil {
				return 0, err
			}
			key = string(kv.Key) + "\x00"
		}
		if !resp.More {
			return revision, nil
		}
	}
}

// load reads the newest state. It reuses unchanged records of the previous state, together with their derived data.
func (s *Store) load(ctx context.Context, before *storage.Snapshot) (*storage.Snapshot, error) {
	var l storage.Loader
	revision, err := s.readPages(ctx, 0, func(kv *mvccpb.KeyValue) error {
		if before != nil {
			if known := before.Get(s.storageKey(kv.Key)); known != nil && known.Modified == kv.ModRevision {
				return l.Add(known)
			}
		}
		return l.Add(s.record(kv))
	})
	if err != nil {
		return nil, err
	}
	return l.Snapshot(revision), nil
}

// storageKey returns the store's key of a key in etcd.
func (s *Store) storageKey(key []byte) string {
	return s.options.Base + strings.TrimPrefix(string(key), s.options.Prefix)
}

// record converts a key-value pair of etcd.
func (s *Store) record(kv *mvccpb.KeyValue) *storage.Record {
	return &storage.Record{
		Key: s.storageKey(kv.Key), Value: kv.Value, Created: kv.CreateRevision, Modified: kv.ModRevision,
		Expires: s.leases.expiry(clientv3.LeaseID(kv.Lease)),
	}
}

// reconnectDelay is the pause before an ended watch is started again.
const reconnectDelay = 100 * time.Millisecond

// follow keeps the replica up to date with etcd, until Close.
func (s *Store) follow() {
	for s.lifetime.Err() == nil {
		err := s.watch()
		if isCompacted(err) {
			err = s.resync()
		}
		if err == nil || s.lifetime.Err() != nil {
			continue
		}
		s.options.Logger.Warn("the watch of etcd has ended and will be restarted", "err", err)
		select {
		case <-s.lifetime.Done():
		case <-time.After(reconnectDelay):
		}
	}
}

// resync resets the replica to the current state of etcd, after etcd has compacted changes before they were read.
func (s *Store) resync() error {
	head, err := s.load(s.lifetime, s.Head())
	if err == nil {
		s.Reset(head, head.Revision())
	}
	return err
}

var errEnded = errors.New("etcd has ended the watch")

// watch publishes the changes after the head, until the watch ends.
func (s *Store) watch() error {
	ctx, cancel := context.WithCancel(s.watchContext(s.lifetime))
	defer cancel()
	responses := s.client.Watch(ctx, s.options.Prefix, clientv3.WithPrefix(),
		clientv3.WithRev(s.Head().Revision()+1), clientv3.WithProgressNotify())
	for resp := range responses {
		if err := resp.Err(); err != nil {
			return err
		}
		switch n := len(resp.Events); {
		case n > 0:
			events := s.events(resp.Events)
			s.Apply(events, events[n-1].Revision)
		case resp.IsProgressNotify():
			s.Apply(nil, resp.Header.Revision)
		}
	}
	return errEnded
}

// watchContext returns a context that selects the gRPC stream of watch. RequestProgress requests progress per stream.
func (s *Store) watchContext(ctx context.Context) context.Context {
	return clientv3.WithRequireLeader(ctx)
}

// events converts events of etcd. Their Previous is set only if the watch has requested it.
func (s *Store) events(received []*clientv3.Event) []*storage.Event {
	events := make([]*storage.Event, len(received))
	for i, e := range received {
		events[i] = &storage.Event{Revision: e.Kv.ModRevision, Key: s.storageKey(e.Kv.Key)}
		if e.Type == clientv3.EventTypePut {
			events[i].Record = s.record(e.Kv)
			s.inFlight.attachDerived(events[i].Record)
		}
		if e.PrevKv != nil {
			events[i].Previous = s.record(e.PrevKv)
		}
	}
	return events
}

// inFlight holds the writes of running commits by key. The watch reuses their values and derived data when etcd
// delivers the events.
type inFlight struct {
	mu     sync.Mutex
	writes map[string][]*storage.Write
}

func (u *inFlight) add(writes []storage.Write) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.writes == nil {
		u.writes = map[string][]*storage.Write{}
	}
	for i := range writes {
		u.writes[writes[i].Key] = append(u.writes[writes[i].Key], &writes[i])
	}
}

func (u *inFlight) remove(writes []storage.Write) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range writes {
		key := writes[i].Key
		left := u.writes[key][:0]
		for _, w := range u.writes[key] {
			if w != &writes[i] {
				left = append(left, w)
			}
		}
		if u.writes[key] = left; len(left) == 0 {
			delete(u.writes, key)
		}
	}
}

// attachDerived sets the derived data of r if r results from a write in flight.
func (u *inFlight) attachDerived(r *storage.Record) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, w := range u.writes[r.Key] {
		if w.Derived != nil && bytes.Equal(w.Value, r.Value) {
			r.Value = w.Value
			r.Derived.Store(w.Derived)
			return
		}
	}
}
