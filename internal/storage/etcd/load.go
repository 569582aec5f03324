package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// maxLoads is the number of attempts to read the whole state, each at the newest revision of that time.
const maxLoads = 5

// load reads the newest state, and returns its newest key-value pair, or nil if there is none. It starts again if etcd
// compacts the revision meanwhile, or if a member is unavailable. It reuses unchanged records of the previous state,
// together with their derived data. If etcd has another record at a revision that the previous state includes, the
// store fails.
func (s *Store) load(
	ctx context.Context, before *storage.Snapshot,
) (head *storage.Snapshot, newest *mvccpb.KeyValue, err error) {
	limited, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	err = retry(limited, func() (err error) {
		for range maxLoads {
			if head, newest, err = s.loadOnce(ctx, before); !isCompacted(err) {
				break
			}
		}
		return err
	})
	return head, newest, err
}

func (s *Store) loadOnce(
	ctx context.Context, before *storage.Snapshot,
) (head *storage.Snapshot, newest *mvccpb.KeyValue, err error) {
	var l storage.Loader
	revision, err := s.readAll(ctx, 0, func(kv *mvccpb.KeyValue) error {
		if newest == nil || kv.ModRevision > newest.ModRevision {
			newest = kv
		}
		if before == nil || kv.ModRevision > before.Revision() {
			return l.Add(s.record(kv))
		}
		known := before.Get(s.storageKey(kv.Key))
		if known == nil || known.Modified != kv.ModRevision {
			s.fail(replaced(fmt.Errorf("%s is not the same as before at revision %d", kv.Key, kv.ModRevision)))
			return s.Failed()
		}
		return l.Add(known)
	})
	if err != nil {
		return nil, nil, err
	}
	return l.Snapshot(revision), newest, nil
}

// readAll reads all keys below the prefix at a revision, where 0 means now. It returns the newest revision, which is
// the one that was read if the argument is 0.
func (s *Store) readAll(ctx context.Context, revision int64, add func(*mvccpb.KeyValue) error) (int64, error) {
	first, silent := s.options.Timeout/4, true
	addFrom := func(kv *mvccpb.KeyValue) error { silent = false; return add(kv) }
	header, err := s.readStream(ctx, revision, first, addFrom)
	if silent && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		// A member that was cut off may keep a read without an answer. The client selects another member.
		header, err = s.readStream(ctx, revision, s.options.Timeout-first, addFrom)
	}
	if status.Code(err) == codes.Unimplemented { // etcd is older than 3.7, or its gRPC proxy
		header, err = s.readPages(ctx, revision, add)
	}
	if err != nil {
		return 0, err
	}
	s.position.cluster.CompareAndSwap(0, header.ClusterId)
	return header.Revision, nil
}

// readStream reads all keys in one response. etcd adapts the number of keys in its parts to the size of the values.
// first limits the time until the first part.
func (s *Store) readStream(
	ctx context.Context, revision int64, first time.Duration, add func(*mvccpb.KeyValue) error,
) (header *pb.ResponseHeader, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timeout := time.AfterFunc(first, func() { cancel(context.DeadlineExceeded) })
	defer timeout.Stop()
	check := s.expectResponse()
	defer check.Stop()
	parts, err := s.client.GetStream(ctx, s.options.Prefix, clientv3.WithPrefix(), clientv3.WithRev(revision))
	if err == nil {
		for part := range parts { // until the end also after an error, because the sender would block
			timeout.Reset(s.options.Timeout)
			check.Reset(responseDelay)
			if err == nil {
				if header, err = addPart(&part, add); err != nil {
					cancel(err)
				}
			}
		}
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err == nil && header == nil:
		return nil, io.ErrUnexpectedEOF
	}
	return header, err
}

// addPart adds the keys in a part of a streamed response. It returns the header, which only the last part has.
func addPart(part *clientv3.RangeStreamResponse, add func(*mvccpb.KeyValue) error) (*pb.ResponseHeader, error) {
	if err := part.Err(); err != nil {
		return nil, err
	}
	for _, kv := range part.Kvs {
		if err := add(kv); err != nil {
			return nil, err
		}
	}
	return part.Header, nil
}

// pageSize is the number of keys that one request of readPages reads.
const pageSize = 1000

// readPages is like readStream, for servers without streamed responses.
func (s *Store) readPages(
	ctx context.Context, revision int64, add func(*mvccpb.KeyValue) error,
) (header *pb.ResponseHeader, err error) {
	key, end := s.options.Prefix, clientv3.GetPrefixRangeEnd(s.options.Prefix)
	for {
		limited, cancel := context.WithTimeout(ctx, s.options.Timeout)
		resp, err := s.client.Get(limited, key,
			clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
		cancel()
		if err != nil {
			return nil, err
		}
		if header == nil {
			header = resp.Header
		}
		if revision == 0 {
			revision = header.Revision
		}
		for _, kv := range resp.Kvs {
			if err := add(kv); err != nil {
				return nil, err
			}
			key = string(kv.Key) + "\x00"
		}
		if !resp.More {
			return header, nil
		}
	}
}
