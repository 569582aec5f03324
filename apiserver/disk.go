package apiserver

import (
	"context"
	"errors"
	"time"

	"github.com/trellis-k8s/trellis/internal/api"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// alive fails when nothing can be written until the server is restarted. The log says why; clients
// are not told its paths.
func (s *Server) alive() error {
	if s.store.Failed() != nil {
		return storage.ErrFailed
	}
	return nil
}

// writable fails while not everything can be written.
func (s *Server) writable() error {
	if err := s.alive(); err != nil {
		return err
	}
	if len(s.config.Etcd.Servers) == 0 {
		return s.disk.Err()
	}
	ctx, cancel := context.WithTimeout(context.Background(), etcdPatience)
	defer cancel()
	if _, err := s.store.Fresh(ctx); err != nil {
		return errNoEtcd
	}
	return nil
}

// etcdPatience is how long etcd may take to answer a check, as kube-apiserver's.
const etcdPatience = 2 * time.Second

var errNoEtcd = errors.New("etcd does not answer")

// gauges tell of the disk below the store.
func (s *Server) diskGauges() []api.Gauge {
	if s.config.DataDir == "" || len(s.config.Etcd.Servers) > 0 {
		return nil
	}
	return []api.Gauge{
		{Name: "trellis_storage_writable", Help: "Whether everything can be written: 1, or 0 while the disk is nearly full or has failed.", Read: func() float64 {
			if s.writable() != nil {
				return 0
			}
			return 1
		}},
		{Name: "trellis_storage_disk_free_bytes", Help: "Free bytes of the disk that the data directory is on.", Read: func() float64 {
			free, _ := s.disk.FreeSpace()
			return float64(free)
		}},
		{Name: "trellis_storage_disk_reserve_bytes", Help: "Bytes of the disk that are kept free for what makes room.", Read: func() float64 {
			_, reserve := s.disk.FreeSpace()
			return float64(reserve)
		}},
		{Name: "trellis_storage_disk_failures", Help: "How often the disk has failed a write since the server was started.", Read: func() float64 {
			return float64(s.disk.Failures())
		}},
	}
}
