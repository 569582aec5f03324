package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// pageSize is how many keys are read at once.
const pageSize = 1000

// pages reads all that is ours as of a revision, or of now where that is 0, and returns the revision.
func (s *Store) pages(ctx context.Context, revision int64, add func(*mvccpb.KeyValue) error) (int64, error) {
	key, end := s.options.Prefix, clientv3.GetPrefixRangeEnd(s.options.Prefix)
	for {
		limited, cancel := context.WithTimeout(ctx, s.options.Timeout)
		resp, err := s.client.Get(limited, key, clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
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

// load reads the newest state. Records of the state before that have not changed are taken over, with what is known of them.
func (s *Store) load(ctx context.Context, before *storage.Snapshot) (*storage.Snapshot, error) {
	var l storage.Loader
	revision, err := s.pages(ctx, 0, func(kv *mvccpb.KeyValue) error {
		if before != nil {
			if known := before.Get(s.ours(kv.Key)); known != nil && known.Modified == kv.ModRevision {
				return l.Add(known)
			}
		}
		r, err := s.record(kv)
		if err != nil {
			return err
		}
		return l.Add(r)
	})
	if err != nil {
		return nil, err
	}
	return l.Snapshot(revision), nil
}

// ours is the key of what lies in etcd under key.
func (s *Store) ours(key []byte) string {
	return s.options.Base + strings.TrimPrefix(string(key), s.options.Prefix)
}

// record is what etcd holds of a key.
func (s *Store) record(kv *mvccpb.KeyValue) (*storage.Record, error) {
	key := s.ours(kv.Key)
	value, err := s.options.Codecs.Open(key, kv.Value)
	if err != nil {
		return nil, fmt.Errorf("open the value of %s: %w", key, err)
	}
	return &storage.Record{
		Key: key, Value: value, Created: kv.CreateRevision, Modified: kv.ModRevision,
		Expires: s.leases.end(clientv3.LeaseID(kv.Lease)),
	}, nil
}

// reconnectAfter is how long etcd is left alone after a watch has ended.
const reconnectAfter = 100 * time.Millisecond

// follow keeps the replica up with etcd until Close.
func (s *Store) follow() {
	for s.lifetime.Err() == nil {
		err := s.watch()
		if compacted(err) {
			err = s.resync()
		}
		if err == nil || s.lifetime.Err() != nil {
			continue
		}
		s.options.Logger.Warn("the watch of etcd has ended; it is begun again", "err", err)
		select {
		case <-s.lifetime.Done():
		case <-time.After(reconnectAfter):
		}
	}
}

// resync goes on from what etcd holds now, after a time in which changes have been missed and forgotten.
func (s *Store) resync() error {
	head, err := s.load(s.lifetime, s.Head())
	if err == nil {
		s.Reset(head, head.Revision())
	}
	return err
}

var errEnded = errors.New("etcd has ended it")

// watch publishes what etcd tells after the head, until that ends.
func (s *Store) watch() error {
	ctx, cancel := context.WithCancel(s.followed(s.lifetime))
	defer cancel()
	told := s.client.Watch(ctx, s.options.Prefix, clientv3.WithPrefix(), clientv3.WithRev(s.Head().Revision()+1), clientv3.WithProgressNotify())
	for resp := range told {
		if err := resp.Err(); err != nil {
			return err
		}
		switch n := len(resp.Events); {
		case n > 0:
			events, err := s.events(resp.Events)
			if err != nil {
				s.fail(err)
				<-s.lifetime.Done()
				return nil
			}
			s.Apply(events, events[n-1].Revision)
		case resp.IsProgressNotify():
			s.Apply(nil, resp.Header.Revision)
		}
	}
	return errEnded
}

// followed is a context of the stream that watch uses: progress is asked for by stream.
func (s *Store) followed(ctx context.Context) context.Context { return clientv3.WithRequireLeader(ctx) }

// events are what etcd tells, in its order; their Previous is there only where etcd was asked for it.
func (s *Store) events(told []*clientv3.Event) ([]*storage.Event, error) {
	events := make([]*storage.Event, len(told))
	for i, e := range told {
		events[i] = &storage.Event{Revision: e.Kv.ModRevision, Key: s.ours(e.Kv.Key)}
		var err error
		if e.Type == clientv3.EventTypePut {
			if events[i].Record, err = s.record(e.Kv); err != nil {
				return nil, err
			}
			s.underway.recognize(events[i].Record)
		}
		if e.PrevKv != nil {
			if events[i].Previous, err = s.record(e.PrevKv); err != nil {
				return nil, err
			}
		}
	}
	return events, nil
}

// underway are the writes of commits that have not been answered yet, by key: what is known of a value by who writes it
// is still known when etcd tells of it.
type underway struct {
	mu     sync.Mutex
	writes map[string][]*storage.Write
}

func (u *underway) add(writes []storage.Write) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.writes == nil {
		u.writes = map[string][]*storage.Write{}
	}
	for i := range writes {
		u.writes[writes[i].Key] = append(u.writes[writes[i].Key], &writes[i])
	}
}

func (u *underway) remove(writes []storage.Write) {
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

// recognize gives r what is known of its value.
func (u *underway) recognize(r *storage.Record) {
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
