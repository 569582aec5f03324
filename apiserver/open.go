package apiserver

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"k8s.io/apiserver/pkg/server/egressselector"

	"github.com/trellis-k8s/trellis/internal/api/metrics"
	"github.com/trellis-k8s/trellis/internal/egress/selector"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/ownership"
	"github.com/trellis-k8s/trellis/internal/serving"
	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
)

// open reads the files, opens the store and listens.
func (s *Server) open(ctx context.Context) (err error) {
	if s.certificates, err = serving.NewCertificates(s.config.TLS); err != nil {
		return err
	}
	if err := s.openClientCertificates(); err != nil {
		return err
	}
	if s.egressSelector, err = selector.Open(s.config.EgressSelectorFile); err != nil {
		return fmt.Errorf("--egress-selector-config-file: %w", err)
	}
	if s.store, err = s.openStore(ctx); err != nil {
		return err
	}
	if s.listener, err = serving.Listen(s.config.Address); err != nil {
		return err
	}
	return s.openKeys()
}

// path returns the path of a file in the data directory, or "" if there is no data directory.
func (s *Server) path(name string) string {
	if s.config.DataDir == "" {
		return ""
	}
	return filepath.Join(s.config.DataDir, name)
}

// openStore connects to etcd or opens the data directory. It fails if another server uses the data directory.
func (s *Server) openStore(ctx context.Context) (storage.Store, error) {
	if s.config.DataDir != "" {
		if err := os.MkdirAll(s.config.DataDir, 0o700); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		warnings, err := ownership.CheckDirectories(s.config.DataDir, "pki", "store")
		if err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		for _, warning := range warnings {
			s.config.Logger.Warn("other users can change the data directory: " + warning)
		}
	}
	if len(s.config.Etcd.Servers) > 0 {
		return s.openEtcd(ctx)
	}
	store, err := embedded.Open(embedded.Options{
		Dir:          s.path("store"),
		CompactAfter: s.config.CompactionInterval,
		HistoryBytes: s.config.HistoryBytes,
		Reserve:      s.config.DiskReserve,
		DiskUsage:    s.config.DiskUsage,
		Health:       &s.disk,
		Logger:       s.config.Logger,

		AcceptLossAfter: s.config.AcceptLossAfter,
	})
	if err != nil {
		return nil, err // a nil *logstore.Store would be a non-nil interface
	}
	s.replica = store.Replica
	return store, nil
}

// openEtcd connects to etcd.
func (s *Server) openEtcd(ctx context.Context) (storage.Store, error) {
	cluster := s.config.Etcd
	cluster.Prefix = path.Join("/", cluster.Prefix) + "/"
	codecs, everywhere := kinds.Shared()
	s.barriers = metrics.NewDurations("trellis_storage_barrier_duration_seconds",
		"Time for which writes of kinds and rules have waited for the other servers, in seconds.")
	store, err := etcd.Open(ctx, etcd.Options{
		Cluster: cluster, Base: "/registry/", Codecs: codecs, Everywhere: everywhere,
		Dial:           s.egressSelector.Dialer(egressselector.Etcd),
		CompactAfter:   s.config.CompactionInterval,
		HistoryBytes:   s.config.HistoryBytes,
		ObserveBarrier: s.barriers.Observe,
		Logger:         s.config.Logger,
	})
	if err != nil {
		return nil, err
	}
	s.replica, s.etcd = store.Replica, store
	return store, nil
}
