package etcd_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// TestProgressOfEarlierWatch checks that a store does not apply a progress report for an earlier watch of etcd to the
// watch that has replaced it at a new connection. In each round, etcd cannot send events for a while, and reads request
// reports. Then the store connects to another address.
func TestProgressOfEarlierWatch(t *testing.T) {
	e := storagetest.StartEtcd(t)
	proxies, c := []*proxy{newProxy(t, e.URL), newProxy(t, e.URL)}, newClient(t, e.URL)
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{proxies[0].url, proxies[1].url}}})
	value := string(bytes.Repeat([]byte("x"), 2000))
	write := func(n int) {
		for i := range n {
			if _, err := c.Put(t.Context(), fmt.Sprint("/registry/a", i), value); err != nil {
				t.Fatal(err)
			}
		}
	}
	for round := range 40 {
		blocked, other := proxies[round%2], proxies[1-round%2]
		blocked.block()
		var reads sync.WaitGroup
		for range 8 {
			reads.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				_, _ = s.Fresh(ctx) // may fail while the connection is blocked
			})
		}
		write(200)
		other.close()
		other.open()
		// The store compares the histories over the first connection. The second one restarts the watch.
		for n := 0; n < 40 && other.connections() < 2; n++ {
			write(10)
		}
		write(100)
		blocked.unblock()
		reads.Wait()
		if err := s.Failed(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
}
