package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// position identifies the history that the store has read.
type position struct {
	cluster atomic.Uint64 // ID of the cluster; 0 before the first response
	// newest is the newest key-value pair received. After a deletion it has only a key and a revision. It is nil before
	// the first one.
	newest atomic.Pointer[mvccpb.KeyValue]
	// connections counts the connections to etcd. A watch ends when it changes.
	connections atomic.Int64
}

// dialVerified connects to a member of etcd. Before it returns the connection, it checks over another one that etcd
// still has the history that the store has read. Data may have been restored from a backup while the connection was
// interrupted. If so, the store fails, and no request uses the connection.
func (s *Store) dialVerified(ctx context.Context, address string) (net.Conn, error) {
	if newest := s.position.newest.Load(); newest != nil {
		if err := s.Failed(); err != nil {
			return nil, err
		}
		if err := s.verify(ctx, address, newest); err != nil {
			return nil, err
		}
	}
	conn, err := s.dial(ctx, address)
	if err == nil {
		s.conns.Store(address, conn)
		s.position.connections.Add(1)
	}
	return conn, err
}

// dial connects to a member of etcd.
func (s *Store) dial(ctx context.Context, address string) (net.Conn, error) {
	if s.options.Dial != nil {
		return s.options.Dial(ctx, "tcp", address)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// verify checks that the newest event is in etcd's history. If etcd has another history, the store fails. If etcd has
// compacted the event, verify checks only the ID of the cluster. The watch then ends with the same error, unless the
// compacted revision is that of the event, and resync compares the states.
func (s *Store) verify(ctx context.Context, address string, newest *mvccpb.KeyValue) error {
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout/4)
	defer cancel()
	client, err := s.newClient([]string{s.options.scheme() + address}, s.dial)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	resp, same, err := readEvent(ctx, client, newest)
	if isCompacted(err) {
		same = true
		resp, err = client.Get(ctx, string(newest.Key))
	}
	switch {
	case errors.Is(err, rpctypes.ErrFutureRev):
		err = replaced(fmt.Errorf("its revision is lower than %d", newest.ModRevision))
	case err != nil:
		return err
	case !same:
		err = replaced(fmt.Errorf("%s is not the same as before at revision %d", newest.Key, newest.ModRevision))
	default:
		err = s.checkCluster(resp.Header.ClusterId)
	}
	if err == nil {
		return nil
	}
	s.fail(err)
	return s.Failed()
}

// readEvent reports whether etcd has an event: the same key-value pair, or a deletion, at its revision.
func readEvent(ctx context.Context, client *clientv3.Client, e *mvccpb.KeyValue) (
	resp *clientv3.GetResponse, same bool, err error,
) {
	resp, err = client.Get(ctx, string(e.Key), clientv3.WithRev(e.ModRevision))
	if err != nil || e.Version > 0 { // the version of a deleted key is 0
		return resp, err == nil && len(resp.Kvs) == 1 && samePair(resp.Kvs[0], e), err
	}
	if len(resp.Kvs) > 0 {
		return resp, false, nil
	}
	resp, err = client.Get(ctx, string(e.Key), clientv3.WithRev(e.ModRevision-1), clientv3.WithKeysOnly())
	return resp, err == nil && len(resp.Kvs) == 1, err
}

func samePair(a, b *mvccpb.KeyValue) bool {
	return a.ModRevision == b.ModRevision && a.CreateRevision == b.CreateRevision && a.Version == b.Version &&
		bytes.Equal(a.Value, b.Value)
}

// checkCluster returns an error if a response comes from another cluster than the first one.
func (s *Store) checkCluster(id uint64) error {
	if known := s.position.cluster.Load(); id != known {
		return replaced(fmt.Errorf("the ID of the cluster is %x, not %x", id, known))
	}
	return nil
}

// replaced returns the error of an etcd with another history than the one that the store has read.
func replaced(cause error) error {
	return fmt.Errorf("etcd has lost data, or was restored from a backup: %w", cause)
}
