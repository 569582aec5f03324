package apiserver

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/trellis-k8s/trellis/internal/api/metrics"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// checkAlive returns an error if no write is possible until the server is restarted. The error does not contain the
// cause, because clients must not see paths of the server. The cause is in the log.
func (s *Server) checkAlive() error {
	if s.store.Failed() != nil {
		return storage.ErrFailed
	}
	return nil
}

// checkWritable returns an error while the storage rejects some or all writes. A full etcd is not an error, as in
// kube-apiserver: all servers would leave the load balancer, but they can still serve reads and deletions.
func (s *Server) checkWritable() error {
	if err := s.checkAlive(); err != nil {
		return err
	}
	if s.etcd == nil {
		return s.disk.Err()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second) // as in kube-apiserver
	defer cancel()
	_, err := s.store.Fresh(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("etcd does not respond")
	}
	return cmp.Or(err, s.etcd.Valid())
}

// diskGauges returns the metrics of the disk of the data directory, or nil if the server has none.
func (s *Server) diskGauges() []metrics.Gauge {
	if s.config.DataDir == "" || len(s.config.Etcd.Servers) > 0 {
		return nil
	}
	return []metrics.Gauge{
		{Name: "trellis_storage_writable",
			Help: "1 if all writes are possible, 0 while the disk is nearly full or has failed.", Read: func() float64 {
				if s.checkWritable() != nil {
					return 0
				}
				return 1
			}},
		{Name: "trellis_storage_disk_free_bytes", Help: "Free bytes of the disk of the data directory.",
			Read: func() float64 {
				free, _ := s.disk.FreeSpace()
				return float64(free)
			}},
		{Name: "trellis_storage_disk_reserve_bytes",
			Help: "Disk space in bytes that is reserved for deletions and small updates.", Read: func() float64 {
				_, reserve := s.disk.FreeSpace()
				return float64(reserve)
			}},
		{Name: "trellis_storage_disk_failures", Help: "Failed disk writes since the start.", Read: func() float64 {
			return float64(s.disk.Failures())
		}},
	}
}

// storageGauges returns the metrics of the store's size.
func (s *Server) storageGauges() []metrics.Gauge {
	gauges := []metrics.Gauge{
		{Name: "trellis_storage_watchers", Help: "Open watches of the store, including those of the server itself.",
			Read: func() float64 { return float64(s.replica.Usage().Cursors) }},
		{Name: "trellis_storage_history_events", Help: "Number of changes of the history in memory.",
			Read: func() float64 { return float64(s.replica.Usage().Events) }},
		{Name: "trellis_storage_history_bytes", Help: "Size of the history in memory.",
			Read: func() float64 { return float64(s.replica.Usage().Bytes) }},
		{Name: "trellis_storage_oldest_revision", Help: "Oldest revision that can be read.",
			Read: func() float64 { return float64(s.replica.Oldest()) }},
	}
	if s.etcd != nil {
		gauges = append(gauges, metrics.Gauge{Name: "trellis_storage_servers",
			Help: "Servers that are registered in etcd.", Read: func() float64 { return float64(s.etcd.Servers()) }})
	}
	return gauges
}
