// Package etcd is the store in an etcd cluster. etcd numbers revisions, keeps the history and
// lets leases expire; this process holds a replica of all live data, which a watch keeps up
// with etcd (feed.go), and reads from it.
package etcd

import (
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
)

// Options say where etcd is, and what of it is ours.
type Options struct {
	Servers  []string // URLs
	CAFile   string   // that the servers' certificates are signed by; "": the system's
	CertFile string   // this client's, with KeyFile; "": none
	KeyFile  string

	// Dial connects to a server; nil: the net package.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Prefix is what our keys begin with in etcd, in the place of Base.
	Prefix, Base string

	Codecs       storage.Codecs
	CompactAfter time.Duration // how long history is kept; 0: 5 minutes
	Logger       *slog.Logger  // nil: none

	Timeout time.Duration                        // how long etcd is waited for; 0: 10 seconds
	Now     func() time.Time                     // nil: time.Now
	After   func(time.Duration) <-chan time.Time // nil: time.After

	replica storage.ReplicaOptions
}

// reconnect is how etcd is tried again when it has been away: by itself gRPC would soon wait for minutes.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
	MinConnectTimeout: 5 * time.Second,
}

func (o *Options) setDefaults() {
	if o.CompactAfter <= 0 {
		o.CompactAfter = 5 * time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.After == nil {
		o.After = time.After
	}
}

// Store is a storage.Store over etcd, which others may write to as well.
type Store struct {
	*storage.Replica
	client   *clientv3.Client
	options  Options
	asking   rounds
	leases   leases
	underway underway

	lifetime context.Context // ends when Close begins
	end      context.CancelFunc
	failed   atomic.Pointer[error]
	closed   sync.Once
	result   error // of Close
	serving  sync.WaitGroup
	// committing is held for reading by each commit, and guards closing.
	committing sync.RWMutex
	closing    bool
}

// Open connects to etcd and loads all that is ours. ctx bounds the loading.
func Open(ctx context.Context, o Options) (*Store, error) {
	o.setDefaults()
	s := &Store{options: o, leases: newLeases()}
	secure, err := o.tls()
	if err != nil {
		return nil, err
	}
	s.client, err = clientv3.New(clientv3.Config{
		Endpoints: o.Servers, TLS: secure, Logger: zap.NewNop(),
		DialTimeout: o.Timeout, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 10 * time.Second,
		MaxCallSendMsgSize: math.MaxInt32, // etcd says what is too large
		DialOptions:        o.dialling(),
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(o.Servers, ","), err)
	}
	s.lifetime, s.end = context.WithCancel(context.Background())
	head, err := s.load(ctx, nil)
	if err != nil {
		s.end()
		return nil, errors.Join(fmt.Errorf("load from etcd at %s: %w", strings.Join(o.Servers, ","), err), s.client.Close())
	}
	s.Replica = storage.NewReplica(head, 0, s, o.replica)
	s.serving.Go(s.follow)
	s.serving.Go(s.compactor)
	return s, nil
}

// dialling is how a connection is opened.
func (o *Options) dialling() []grpc.DialOption {
	all := []grpc.DialOption{grpc.WithConnectParams(reconnect)}
	if o.Dial != nil {
		all = append(all, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return o.Dial(ctx, "tcp", address)
		}))
	}
	return all
}

// tls returns what secures the connection; nil where nothing does.
func (o *Options) tls() (*tls.Config, error) {
	if o.CAFile == "" && o.CertFile == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("the CA of etcd: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the CA of etcd: %s holds no certificates", o.CAFile)
		}
	}
	if o.CertFile == "" {
		return c, nil
	}
	if _, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile); err != nil {
		return nil, fmt.Errorf("the certificate for etcd: %w", err)
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile) // it may have been renewed
		return &pair, err
	}
	return c, nil
}

// key is where a key lies in etcd.
func (s *Store) key(key string) string {
	return s.options.Prefix + strings.TrimPrefix(key, s.options.Base)
}

// Failed is why this process can no longer go on with what etcd holds.
func (s *Store) Failed() error {
	if p := s.failed.Load(); p != nil {
		return *p
	}
	return nil
}

func (s *Store) fail(cause error) {
	err := fmt.Errorf("%w: %w", storage.ErrFailed, cause)
	if s.failed.CompareAndSwap(nil, &err) {
		s.options.Logger.Error("what etcd holds cannot be followed any more; reads go on, writes do not", "err", cause)
	}
}

// Close ends all cursors and the connection. Commits in flight finish first.
func (s *Store) Close() error {
	s.closed.Do(func() {
		s.committing.Lock() // those in flight end first
		s.closing = true
		s.committing.Unlock()
		s.end()
		s.serving.Wait()
		s.Replica.Close()
		s.result = s.client.Close()
	})
	return s.result
}

// compactor forgets history that has become old. etcd would keep all of it.
func (s *Store) compactor() {
	for {
		reached := s.Head().Revision()
		select {
		case <-s.lifetime.Done():
			return
		case <-s.options.After(s.options.CompactAfter):
		}
		if err := s.Compact(s.lifetime, reached); err != nil && s.lifetime.Err() == nil {
			s.options.Logger.Warn("the history in etcd could not be compacted", "revision", reached, "err", err)
		}
	}
}

// Compact forgets history up to revision (that revision's own state stays readable).
func (s *Store) Compact(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	if revision <= s.Oldest() {
		return nil
	}
	if err := s.DropHistory(revision); err != nil {
		return err
	}
	if _, err := s.client.Compact(ctx, revision); err != nil && !compacted(err) {
		return unavailable(err)
	}
	s.TrimHistory()
	return nil
}
