package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

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
		Expires: s.leases.Expiry(clientv3.LeaseID(kv.Lease)),
	}
	if s.inFlight.Attach(r, kv.Value) {
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
	defer s.watches.Add(1) // before cancel
	s.endWatch.Store(&cancel)
	connections := s.position.connections.Load()
	responses := s.client.Watch(ctx, s.options.Prefix, clientv3.WithPrefix(), clientv3.WithRev(*after+1),
		clientv3.WithProgressNotify(), clientv3.WithFragment())
	for resp := range responses {
		if err := resp.Err(); err != nil {
			return err
		}
		if s.position.connections.Load() != connections || s.Failed() != nil {
			return nil
		}
		err := s.checkCluster(resp.Header.ClusterId)
		switch {
		case err != nil:
		case len(resp.Events) > 0:
			err = s.publish(resp.Events, after)
		case resp.IsProgressNotify():
			s.Apply(nil, resp.Header.Revision)
		}
		if err != nil {
			s.fail(err)
			return nil
		}
	}
	return errEnded
}

// publish adds events of etcd to the replica. It skips events that etcd has sent before, as after a member has received
// a snapshot of the others. It returns an error and adds nothing if the events contradict the published history.
func (s *Store) publish(received []*clientv3.Event, after *int64) error {
	d, newest := s.Head().Draft(), (*mvccpb.KeyValue)(nil)
	for _, r := range received {
		e := s.event(r)
		switch known, repeated := s.isRepeated(e, d, *after); {
		case repeated && known:
			continue
		case repeated:
			return replaced(fmt.Errorf("%s has changed at revision %d, which the store had already passed", r.Kv.Key,
				e.Revision))
		}
		if d.Add(e); !isSuccessor(r, e.Previous) {
			return fmt.Errorf("the watch of etcd has omitted changes of %s before revision %d", r.Kv.Key, e.Revision)
		}
		newest = r.Kv
	}
	if len(d.Events) == 0 {
		return nil
	}
	*after = d.Revision
	s.Publish(d)
	s.position.newest.Store(newest)
	if m := s.member.Load(); m != nil {
		m.observe(d.Events)
	}
	return nil
}

// isRepeated reports whether an event has a revision that the store has already passed, and whether it is then known as
// an event of the draft or of the history. An event that is too old to be compared counts as known. after is the
// revision of the last published event.
func (s *Store) isRepeated(e *storage.Event, d *storage.Draft, after int64) (known, repeated bool) {
	for _, p := range slices.Backward(d.Events) {
		if p.Revision < e.Revision {
			break
		}
		if p.Revision == e.Revision && p.Key == e.Key {
			return true, true
		}
	}
	switch {
	case e.Revision > d.Revision, e.Revision == d.Revision && len(d.Events) > 0:
		return false, false
	case e.Revision > after:
		return false, true
	case e.Revision <= s.OldestInMemory():
		return true, true
	}
	then, err := s.At(s.lifetime, e.Revision)
	if err != nil {
		return true, true
	}
	return modified(then.Get(e.Key)) == modified(e.Record), true
}

// isSuccessor reports whether an event can directly follow the record previous of its key.
func isSuccessor(e *clientv3.Event, previous *storage.Record) bool {
	switch {
	case e.IsCreate():
		return previous == nil
	case e.Type == clientv3.EventTypePut:
		return previous != nil && previous.Created == e.Kv.CreateRevision
	}
	return previous != nil
}

// checkRecord fails the store if its state at a revision has another record of a key than etcd has, because the watch
// has then omitted a change. want is Modified of the record in etcd, or 0 if there is none.
func (s *Store) checkRecord(key string, revision, want int64) {
	if then, err := s.At(s.lifetime, revision); err == nil && modified(then.Get(key)) != want {
		s.fail(fmt.Errorf("the watch of etcd has omitted changes of %s before revision %d", s.etcdKey(key), revision))
	}
}

// modified returns r.Modified, or 0 if r is nil.
func modified(r *storage.Record) int64 {
	if r == nil {
		return 0
	}
	return r.Modified
}

// watchContext returns a context that selects the gRPC stream of the current watch, or else that of the next one.
// etcd reports progress per stream, and the client passes a report to all watches of the stream. A watch that shared a
// stream with the previous one could get a report for that one before it has delivered older events.
func (s *Store) watchContext(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "trellis-watch", strconv.FormatInt(s.watches.Load(), 10))
}

// event converts an event of etcd. Its Previous is set only if the watch has requested it.
func (s *Store) event(received *clientv3.Event) *storage.Event {
	e := &storage.Event{Revision: received.Kv.ModRevision, Key: s.storageKey(received.Kv.Key)}
	if received.Type == clientv3.EventTypePut {
		e.Record = s.record(received.Kv)
	}
	if received.PrevKv != nil {
		e.Previous = s.record(received.PrevKv)
	}
	return e
}
