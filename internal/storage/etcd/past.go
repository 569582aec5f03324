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

// Watch asks etcd whether it still has what this process has not.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) (*storage.Cursor, error) {
	if s.lifetime.Err() == nil && after < s.OldestInMemory() && after >= s.Oldest() {
		limited, cancel := context.WithTimeout(ctx, s.options.Timeout)
		defer cancel()
		if _, err := s.client.Get(limited, s.options.Prefix, clientv3.WithRev(after), clientv3.WithKeysOnly()); err != nil {
			return nil, s.reading(err, after)
		}
	}
	return s.Replica.Watch(ctx, prefix, after)
}

// Bounds of one call of Replay.
const (
	replayEvents = 4096
	askProgress  = 20 * time.Millisecond
)

// replays numbers the streams of Replay: etcd tells of progress by stream, when all its watches have caught up.
var replays atomic.Int64

// Replay watches from there, until etcd says that it has told everything up to until.
func (s *Store) Replay(ctx context.Context, prefix string, after, until int64) (events []*storage.Event, reached int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "trellis-replay", strconv.FormatInt(replays.Add(1), 10))
	told := s.client.Watch(ctx, s.key(prefix), clientv3.WithPrefix(), clientv3.WithRev(after+1), clientv3.WithPrevKV())
	ask := time.NewTicker(askProgress)
	defer ask.Stop()
	patience := time.NewTimer(s.options.Timeout)
	defer patience.Stop()
	_ = s.client.RequestProgress(ctx) // else the ticker will
	for {
		select {
		case resp, open := <-told:
			if !open {
				return nil, after, s.reading(errEnded, after)
			}
			if err := resp.Err(); err != nil {
				return nil, after, s.reading(err, after)
			}
			more, err := s.events(resp.Events)
			if err != nil {
				return nil, after, err
			}
			for _, e := range more {
				if e.Revision > until {
					return events, until, nil
				}
				events = append(events, e)
			}
			if len(events) >= replayEvents { // etcd never tells half of a revision
				return events, events[len(events)-1].Revision, nil
			}
			if resp.IsProgressNotify() && resp.Header.Revision >= until {
				return events, until, nil
			}
		case <-ask.C:
			_ = s.client.RequestProgress(ctx)
		case <-patience.C:
			return nil, after, unavailable(context.DeadlineExceeded)
		}
	}
}

// ReadAt reads all that there was, and tells what is another now.
func (s *Store) ReadAt(ctx context.Context, target int64, base *storage.Snapshot, put func(string, *storage.Record)) error {
	there := map[string]bool{}
	_, err := s.pages(ctx, target, func(kv *mvccpb.KeyValue) error {
		key := s.ours(kv.Key)
		there[key] = true
		if now := base.Get(key); now != nil && now.Modified == kv.ModRevision {
			return nil
		}
		r, err := s.record(kv)
		if err == nil {
			put(key, r)
		}
		return err
	})
	if err != nil {
		return s.reading(err, target)
	}
	for r := range base.Walk("", "") {
		if !there[r.Key] {
			put(r.Key, nil)
		}
	}
	return nil
}
