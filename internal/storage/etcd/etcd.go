// Package etcd implements storage.Store in an etcd cluster. etcd numbers revisions, keeps the history, and deletes
// the keys of expired leases. The process reads from a replica of all live data, which a watch of etcd updates
// (feed.go). It must not import anything about Kubernetes objects.
package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/etcd/inflight"
	"github.com/trellis-k8s/trellis/internal/storage/etcd/lease"
)

// Options configures the connection to etcd and the part of etcd that the store uses.
type Options struct {
	Cluster

	// Dial connects to a server. nil means the dialer of package net.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	Base   string         // Prefix replaces it at the beginning of all keys in etcd
	Codecs storage.Codecs // codecs of the values, by the store's keys
	// Everywhere lists prefixes of the store's keys. A commit below them returns after all servers that have joined
	// have applied it.
	Everywhere []string

	CompactAfter time.Duration // age after which history is compacted; 0 means 5 minutes
	HistoryBytes int64         // maximum size of the history in memory; etcd has all of it; 0 means 32 MiB
	Logger       *slog.Logger  // nil means none
	// ObserveBarrier is called with the time for which a commit below Everywhere has waited for other servers. nil
	// means that it is not called.
	ObserveBarrier func(time.Duration)

	Timeout time.Duration                        // timeout of requests to etcd; 0 means 10 seconds
	Now     func() time.Time                     // nil means time.Now
	After   func(time.Duration) <-chan time.Time // nil means time.After
}

// connectParams bounds the delay between attempts to reconnect to etcd. gRPC's default grows to two minutes.
var connectParams = grpc.ConnectParams{
	Backoff: backoff.Config{
		BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second,
	},
	MinConnectTimeout: 5 * time.Second,
}

func (o *Options) setDefaults() {
	o.CompactAfter = cmp.Or(max(o.CompactAfter, 0), 5*time.Minute)
	o.HistoryBytes = cmp.Or(max(o.HistoryBytes, 0), 32<<20)
	o.MaxOps = cmp.Or(max(o.MaxOps, 0), defaultMaxOps)
	o.MaxBytes = cmp.Or(max(o.MaxBytes, 0), defaultMaxBytes)
	o.Timeout = cmp.Or(max(o.Timeout, 0), 10*time.Second)
	if o.ObserveBarrier == nil {
		o.ObserveBarrier = func(time.Duration) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.After == nil {
		o.After = time.After
	}
}

// Store is a storage.Store in etcd. Other processes may write to the same keys.
type Store struct {
	*storage.Replica
	client    *clientv3.Client
	options   Options
	secure    *tls.Config // nil means no TLS
	position  position
	revisions readBatcher
	leases    *lease.Leases
	inFlight  inflight.Writes
	watches   atomic.Int64                       // how many watches of etcd have ended
	endWatch  atomic.Pointer[context.CancelFunc] // ends the current watch; nil before the first one
	member    atomic.Pointer[member]             // nil before Join
	conns     sync.Map                           // the last connection to each address of a member
	checking  sync.Mutex                         // held by closeUnresponsive

	lifetime  context.Context // cancelled when Close begins
	end       context.CancelFunc
	failed    atomic.Pointer[error]
	closeOnce sync.Once
	closeErr  error // result of Close
	serving   sync.WaitGroup
	// commitMu is held for reading during each commit. It guards closing.
	commitMu sync.RWMutex
	closing  bool
}

// Open connects to etcd and loads all keys below Prefix. ctx limits only the loading.
func Open(ctx context.Context, o Options) (*Store, error) {
	o.setDefaults()
	s := &Store{options: o, leases: lease.New()}
	var err error
	if s.secure, err = o.tls(); err != nil {
		return nil, err
	}
	s.client, err = s.newClient(o.Servers, s.dialVerified)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(o.Servers, ","), err)
	}
	s.lifetime, s.end = context.WithCancel(context.Background())
	head, newest, err := s.load(ctx, nil)
	if err != nil {
		s.end()
		return nil, errors.Join(s.startError("load from", err), s.client.Close())
	}
	s.Replica = storage.NewReplica(head, 0, s, storage.ReplicaOptions{RecentBytes: o.HistoryBytes})
	s.position.newest.Store(newest)
	s.serving.Go(s.follow)
	s.serving.Go(s.compactor)
	return s, nil
}

// newClient returns a client of etcd that connects with the function dial.
func (s *Store) newClient(
	endpoints []string, dial func(ctx context.Context, address string) (net.Conn, error),
) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: s.secure, Logger: zap.NewNop(),
		DialTimeout: s.options.Timeout, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		MaxCallSendMsgSize: math.MaxInt32, // etcd itself reports requests that are too large
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(connectParams), grpc.WithContextDialer(dial),
			grpc.WithUnaryInterceptor(s.interceptUnary), grpc.WithStreamInterceptor(requireLeader)},
	})
}

// scheme returns the beginning of the URLs of etcd's members.
func (o *Options) scheme() string {
	if strings.HasPrefix(o.Servers[0], "https://") {
		return "https://"
	}
	return "http://"
}

// tls returns the TLS configuration of the connection, or nil for none.
func (o *Options) tls() (*tls.Config, error) {
	if o.CAFile == "" && o.CertFile == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("load the CA of etcd: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("load the CA of etcd: %s contains no certificates", o.CAFile)
		}
	}
	if o.CertFile == "" {
		return c, nil
	}
	if _, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile); err != nil {
		return nil, fmt.Errorf("load the client certificate for etcd: %w", err)
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		// Read the files again, because the certificate may have been renewed.
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		return &pair, err
	}
	return c, nil
}

// etcdKey returns the key in etcd of a store's key.
func (s *Store) etcdKey(etcdKey string) string {
	return s.options.Prefix + strings.TrimPrefix(etcdKey, s.options.Base)
}

// At implements storage.Store. It returns an error after the store has failed, because etcd has another history.
func (s *Store) At(ctx context.Context, revision int64) (*storage.Snapshot, error) {
	if err := s.Failed(); err != nil {
		return nil, err
	}
	return s.Replica.At(ctx, revision)
}

// Failed implements storage.Store. A store fails if it can no longer receive changes from etcd.
func (s *Store) Failed() error {
	if p := s.failed.Load(); p != nil {
		return *p
	}
	return nil
}

func (s *Store) fail(cause error) {
	err := fmt.Errorf("%w: %w", storage.ErrFailed, cause)
	if s.failed.CompareAndSwap(nil, &err) {
		s.options.Logger.Error("cannot receive changes from etcd any more: all requests fail until the server is "+
			"restarted", "err", cause)
		if s.Replica != nil {
			s.Reset(s.Head(), s.Head().Revision()) // ends all watches
		}
	}
}

// Close implements storage.Store.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.commitMu.Lock() // waits for commits in flight
		s.closing = true
		s.commitMu.Unlock()
		s.end()
		s.serving.Wait()
		s.Replica.Close()
		s.closeErr = s.client.Close()
	})
	return s.closeErr
}
