package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// compactKey is the key with which all servers of an etcd cluster agree on the one that compacts, also kube-apiserver.
// Its value is the revision to compact. Its version counts the turns. (k8s.io/apiserver, pkg/storage/etcd3/compact.go)
const compactKey = "compact_rev_key"

// turn is what a server knows about the compactions: the version of compactKey and the revision that it saw then.
type turn struct{ version, revision int64 }

// compactor compacts history that is older than CompactAfter. etcd does not compact its history by itself. In each
// interval one of all servers compacts, and the others learn the revision.
func (s *Store) compactor() {
	var known turn
	for {
		select {
		case <-s.lifetime.Done():
			return
		case <-s.options.After(s.options.CompactAfter):
		}
		next, err := s.takeTurn(known)
		if err != nil && s.lifetime.Err() == nil {
			s.options.Logger.Warn("cannot compact the history in etcd", "revision", known.revision, "err", err)
		}
		known = next
	}
}

// takeTurn compacts the revision of the previous turn, unless another server has taken a turn since. It returns the
// state for the next turn.
func (s *Store) takeTurn(known turn) (turn, error) {
	ctx, cancel := context.WithTimeout(s.lifetime, s.options.Timeout)
	defer cancel()
	resp, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.Version(compactKey), "=", known.version)).
		Then(clientv3.OpPut(compactKey, strconv.FormatInt(known.revision, 10))).
		Else(clientv3.OpGet(compactKey)).Commit()
	if errors.Is(err, rpctypes.ErrNoSpace) && known.revision > 0 { // compactions need no space and make some
		return turn{known.version, s.Head().Revision()}, s.Compact(ctx, known.revision)
	}
	if err != nil {
		return known, unavailable(err)
	}
	next := turn{known.version + 1, resp.Header.Revision}
	if resp.Succeeded {
		if known.revision == 0 {
			return next, nil
		}
		return next, s.Compact(ctx, known.revision)
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		next.version = 0
		return next, nil
	}
	next.version = kvs[0].Version
	compacted, err := strconv.ParseInt(string(kvs[0].Value), 10, 64)
	if err != nil {
		return next, fmt.Errorf("the value of %s in etcd: %w", compactKey, err)
	}
	return next, s.dropHistory(compacted)
}

// Compact drops the history before revision in etcd and in memory. The state at revision stays readable.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	if err := s.dropHistory(revision); err != nil {
		return err
	}
	if _, err := s.client.Compact(ctx, revision); err != nil && !isCompacted(err) {
		return unavailable(err)
	}
	return nil
}

// dropHistory drops the history before revision in memory.
func (s *Store) dropHistory(revision int64) error {
	if revision <= s.Oldest() {
		return nil
	}
	if err := s.DropHistory(revision); err != nil {
		return err
	}
	s.TrimHistory()
	return nil
}
