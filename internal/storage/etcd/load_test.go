package etcd_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// fill writes n keys, each with 1 KiB.
func fill(t *testing.T, c *clientv3.Client, n int) (revision int64) {
	t.Helper()
	value := strings.Repeat("x", 1<<10)
	for i := 0; i < n; i += 100 {
		var puts []clientv3.Op
		for j := range 100 {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("/registry/%05d", i+j), value))
		}
		resp, err := c.Txn(t.Context()).Then(puts...).Commit()
		if err != nil {
			t.Fatal(err)
		}
		revision = resp.Header.Revision
	}
	return revision
}

// TestLostRead checks that a store loads although a member of etcd does not answer the first read.
func TestLostRead(t *testing.T) {
	e := storagetest.StartEtcd(t)
	fill(t, newClient(t, e.URL), 100)
	r, end := newRelay(t, e.URL), make(chan struct{})
	t.Cleanup(func() { close(end) })
	var reads atomic.Int64
	r.set(func(method string, response []byte) ([][]byte, error) {
		if method == methodRangeStream && reads.Add(1) == 1 {
			<-end
		}
		return [][]byte{response}, nil
	})
	if n := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{r.url}}}).Head().Count("", ""); n != 100 {
		t.Errorf("the store has %d keys, want 100", n)
	}
}

// TestLoad checks that a store loads all keys from a server that streams them and from one that does not, and reads
// them at an older revision. A compaction of the revision during the load makes the load start again.
func TestLoad(t *testing.T) {
	const n = 3000
	for method, other := range map[string]string{methodRangeStream: "", methodRange: methodRangeStream} {
		t.Run(method, func(t *testing.T) {
			e := storagetest.StartEtcd(t)
			r, c := newRelay(t, e.URL), newClient(t, e.URL)
			first := fill(t, c, n)
			compactions, responses := 0, 0
			r.set(func(m string, response []byte) ([][]byte, error) {
				if m == other {
					return nil, errUnimplemented
				}
				if m != method {
					return [][]byte{response}, nil
				}
				if responses++; responses == 2 && compactions < 2 {
					responses = 0
					compactions++
					changed, err := c.Put(context.Background(), "/registry/changed", fmt.Sprint(compactions))
					if err == nil {
						_, err = c.Compact(context.Background(), changed.Header.Revision)
					}
					if err != nil {
						t.Error(err)
					}
				}
				return [][]byte{response}, nil
			})
			s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{r.url}}})
			head := s.Head()
			if got := head.Get("changed"); compactions != 2 || head.Count("", "") != n+1 || got == nil ||
				string(got.Value) != "2" {
				t.Errorf("the store has %d records after %d compactions, want %d: %v", head.Count("", ""), compactions,
					n+1, got)
			}
			put(t, s, storage.Write{Key: "00000", Value: []byte("1")})
			restarted := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{r.url}}})
			old, err := restarted.At(t.Context(), head.Revision())
			if err != nil || old.Get("00000").Modified > first || old.Count("", "") != n+1 {
				t.Errorf("At(%d): %v, %v", head.Revision(), old, err)
			}
		})
	}
}
