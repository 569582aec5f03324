package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// storageKey returns the store's key of a key in etcd.
func (s *Store) storageKey(key []byte) string {
	return s.options.Base + strings.TrimPrefix(string(key), s.options.Prefix)
}

// record converts a key-value pair of etcd. A value that cannot be decoded is kept as it is, so reads of this object
// fail, and all other objects can be read.
func (s *Store) record(kv *mvccpb.KeyValue) *storage.Record {
	r := &storage.Record{
		Key: s.storageKey(kv.Key), Created: kv.CreateRevision, Modified: kv.ModRevision,
		Expires: s.leases.expiry(clientv3.LeaseID(kv.Lease)),
	}
	if s.inFlight.attach(r, kv.Value) {
		return r
	}
	var err error
	if r.Value, err = s.decode(r.Key, kv.Value); err != nil {
		r.Value = kv.Value
		s.options.Logger.Error("cannot decode a value in etcd", "key", string(kv.Key), "revision", kv.ModRevision,
			"err", err)
	}
	return r
}

// reconnectDelay is the pause before an ended watch is started again.
const reconnectDelay = 100 * time.Millisecond

// follow keeps the replica up to date with etcd, until Close or until etcd has another history.
func (s *Store) follow() {
	after := s.Head().Revision() // revision of the last event
	for s.lifetime.Err() == nil && s.Failed() == nil {
		err := s.watch(&after)
		if isCompacted(err) {
			err = s.resync(&after)
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

// resync reads the current state of etcd, after etcd has compacted changes before they were read. If there were such
// changes below the prefix, it resets the replica. It sets after to the revision of the state.
func (s *Store) resync(after *int64) error {
	before := s.Head()
	head, newest, err := s.load(s.lifetime, before)
	if err != nil {
		return err
	}
	*after = head.Revision()
	if (newest == nil || newest.ModRevision <= before.Revision()) && head.Count("", "") == before.Count("", "") {
		s.Apply(nil, head.Revision())
		return nil
	}
	s.Reset(head, head.Revision())
	s.position.newest.Store(newest)
	if m := s.member.Load(); m != nil {
		m.require(head.Revision()) // the missed changes may include barriers
	}
	return nil
}

var errEnded = errors.New("etcd has ended the watch")

// watch publishes the changes after a revision, until the watch ends. It sets after to the revision of the last event.
// A new connection ends the watch, so that the next one starts after this event. If etcd has another history now, the
// next watch may then return an event at a revision that the store has already passed.
func (s *Store) watch(after *int64) error {
	ctx, cancel := context.WithCancel(s.watchContext(s.lifetime))
	defer cancel()
	connections := s.position.connections.Load()
	responses := s.client.Watch(ctx, s.options.Prefix, clientv3.WithPrefix(), clientv3.WithRev(*after+1),
		clientv3.WithProgressNotify(), clientv3.WithFragment())
	for resp := range responses {
		if err := resp.Err(); err != nil {
			return err
		}
		switch n := len(resp.Events); {
		case s.position.connections.Load() != connections:
			return nil
		case n > 0:
			if first := resp.Events[0].Kv; first.ModRevision <= s.Head().Revision() {
				s.failReplaced(fmt.Errorf("%s has changed at revision %d, which the store had already passed",
					first.Key, first.ModRevision))
				return nil
			}
			s.publish(resp.Events)
			*after = resp.Events[n-1].Kv.ModRevision
		case resp.IsProgressNotify():
			s.Apply(nil, resp.Header.Revision)
		}
	}
	return errEnded
}

// publish adds events of etcd to the replica.
func (s *Store) publish(received []*clientv3.Event) {
	events := s.events(received)
	s.Apply(events, events[len(events)-1].Revision)
	if m := s.member.Load(); m != nil {
		m.observe(events)
	}
	for _, e := range slices.Backward(received) {
		if e.Type == clientv3.EventTypePut {
			s.position.newest.Store(e.Kv)
			break
		}
	}
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
		}
		if e.PrevKv != nil {
			events[i].Previous = s.record(e.PrevKv)
		}
	}
	return events
}
