// Package soak_test uses servers for a long time, while kinds, namespaces, webhooks, policies and watches are created
// and deleted, and servers restart. It checks that the memory, goroutines and file descriptors of a server do not grow.
package soak_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/trellis-k8s/trellis/internal/fixture/program"
	"github.com/trellis-k8s/trellis/internal/fixture/replicas"
)

const (
	// loads is the number of times that the load stops in a test, so that the servers can be measured.
	loads = 120
	// shortLoads is the number of times if SOAK is not set.
	shortLoads = 12
	// shortLoad is the duration of a load if SOAK is not set.
	shortLoad = 3 * time.Second
	// parts is the number of parts of a test. A server restarts between two parts.
	parts = 4
)

// flags let servers compact often. The limit of the history is low, so that it is reached before the first measurement.
var flags = []string{"--history-bytes=1048576", "--etcd-compaction-interval=20s"}

// TestSoak checks that a server's memory, goroutines and descriptors stay the same for the duration in SOAK, such as
// "2h".
func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute: run the tests without -short")
	}
	load, n := shortLoad, shortLoads
	if s := os.Getenv("SOAK"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		load, n = d/loads, loads
	}
	trellis := program.Build(t)
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := program.StartServer(t, trellis, filepath.Join(t.TempDir(), "server"), "127.0.0.1", flags...)
		soak(t, []*program.Server{s}, load, n)
	})
	t.Run("etcd", func(t *testing.T) {
		t.Parallel()
		servers := replicas.StartServers(t, func() string { return trellis }, "127.0.0.", flags...)
		soak(t, servers, load, n)
	})
}

// soak alternates between load and measurements, n times. The servers restart in turn.
func soak(t *testing.T, servers []*program.Server, load time.Duration, n int) {
	meters, clients := []*meter{}, []*client{}
	for _, s := range servers {
		config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, newClient(t, config))
		meters = append(meters, &meter{name: filepath.Base(s.Dir), client: clients[len(clients)-1],
			warm: max(2, n/parts/2)})
	}
	leader := ""
	for i := range n {
		kinds := work(t, clients, i, load)
		if t.Failed() {
			return
		}
		if l, err := clients[0].leader(); err != nil {
			t.Fatal(err)
		} else if l != leader { // the controllers run in another server, which uses more for them
			leader = l
			for _, m := range meters {
				m.reset()
			}
		}
		for _, m := range meters {
			if err := m.measure(); err != nil {
				t.Errorf("after load %d: %s: %v", i, m.name, err)
			}
		}
		t.Logf("load %d: %d kinds: %v", i, kinds, meters)
		if part := n / parts; (i+1)%part == 0 && i+1 < n { // the servers restart in turn
			j := i / part % len(servers)
			if err := servers[j].Restart(); err != nil {
				t.Fatal(err)
			}
			meters[j].reset()
		}
	}
	for _, m := range meters {
		if m.compared == 0 {
			t.Errorf("%s: no sample was compared", m.name)
		}
	}
}
