package etcd

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Watch implements storage.Store. It returns an error after the store has failed. If the given revision is no longer in
// the replica's memory, Watch checks that etcd still has it.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) (*storage.Cursor, error) {
	if err := s.Failed(); err != nil {
		return nil, err
	}
	if s.lifetime.Err() == nil && after < s.OldestInMemory() && after >= s.Oldest() {
		limited, cancel := context.WithTimeout(ctx, s.options.Timeout)
		defer cancel()
		_, err := s.client.Get(limited, s.options.Prefix, clientv3.WithRev(after), clientv3.WithKeysOnly())
		if err != nil {
			return nil, s.readError(err, after)
		}
	}
	return s.Replica.Watch(ctx, prefix, after)
}

// replayID numbers the gRPC streams of Replay. etcd reports progress per stream, once all watches of the stream have
// caught up.
var replayID atomic.Int64

// Replay implements storage.HistoryReader. It watches etcd for events with revisions in (after, until]. It ends
// when etcd reports progress up to the last of these revisions. If it fails after some events, it returns these.
func (s *Store) Replay(
	ctx context.Context, prefix string, after, until int64,
) (events []*storage.Event, reached int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() {
		if reached > after {
			err = nil
		}
	}()
	var size int64
	reached = after
	ctx = metadata.AppendToOutgoingContext(ctx, "trellis-replay", strconv.FormatInt(replayID.Add(1), 10))
	responses := s.client.Watch(ctx, s.etcdKey(prefix),
		clientv3.WithPrefix(), clientv3.WithRev(after+1), clientv3.WithPrevKV())
	progress := time.NewTicker(progressDelay)
	defer progress.Stop()
	timeout := time.NewTimer(s.options.Timeout)
	defer timeout.Stop()
	_ = s.client.RequestProgress(ctx) // if this request fails, the ticker repeats it
	for {
		select {
		case resp, open := <-responses:
			if !open {
				return events, reached, s.readError(errEnded, after)
			}
			if err := resp.Err(); err != nil {
				return events, reached, s.readError(err, after)
			}
			previous := reached
			for _, r := range resp.Events {
				switch e := s.event(r); {
				case e.Revision > until:
					return events, until, nil
				case e.Revision > previous: // not repeated
					events, reached = append(events, e), e.Revision
					size += e.ReplayCost()
				}
			}
			if size >= storage.ReplayBytes { // etcd never splits a revision between responses
				return events, reached, nil
			}
			if resp.IsProgressNotify() && resp.Header.Revision >= until {
				return events, until, nil
			}
		case <-progress.C:
			_ = s.client.RequestProgress(ctx)
		case <-timeout.C:
			return events, reached, unavailable(context.DeadlineExceeded)
		}
	}
}

// ReadAt implements storage.HistoryReader. It reads all keys at revision target and compares them with base.
func (s *Store) ReadAt(
	ctx context.Context, target int64, base *storage.Snapshot, put func(string, *storage.Record),
) error {
	found := map[string]bool{}
	_, err := s.readAll(ctx, target, func(kv *mvccpb.KeyValue) error {
		key := s.storageKey(kv.Key)
		found[key] = true
		if now := base.Get(key); now != nil && now.Modified == kv.ModRevision {
			return nil
		}
		put(key, s.record(kv))
		return nil
	})
	if err != nil {
		return s.readError(err, target)
	}
	for r := range base.Walk("", "") {
		if !found[r.Key] {
			put(r.Key, nil)
		}
	}
	return nil
}
