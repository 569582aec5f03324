package etcd_test

import (
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// TestProgressOfEarlierWatch checks that a store does not apply a progress report for an earlier watch of etcd to the
// watch that has replaced it. In each round, a relay sends such a report to the gRPC stream of the earlier watch after
// etcd has created the new one, and before the events that the new one must deliver.
func TestProgressOfEarlierWatch(t *testing.T) {
	e := storagetest.StartEtcd(t)
	r, c := newRelay(t, e.URL), newClient(t, e.URL)
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{r.url}}})
	r.set(func(method string, response []byte) ([][]byte, error) {
		var resp pb.WatchResponse
		if method != methodWatch {
			return [][]byte{response}, nil
		}
		if err := proto.Unmarshal(response, &resp); err != nil {
			t.Error(err)
		}
		if !resp.Created || resp.WatchId == 0 { // etcd numbers the watches of each stream from 0
			return [][]byte{response}, nil
		}
		report := &pb.WatchResponse{Header: resp.Header, WatchId: clientv3.InvalidWatchID}
		return [][]byte{response, marshal(t, report)}, nil
	})
	for round := range 10 {
		s.RestartWatch()
		foreignPut(t, c, "a", fmt.Sprint(round))
		wait(t, "the store does not receive a change", func() bool {
			if err := s.Failed(); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			record := s.Head().Get("a")
			return record != nil && string(record.Value) == fmt.Sprint(round)
		})
	}
}
