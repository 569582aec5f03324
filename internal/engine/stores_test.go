package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// storeVariable is for the processes that TestOnOtherStores starts: what their worlds stand on, "log" or the URL of etcd.
const storeVariable = "TRELLIS_TEST_STORE"

// TestOnOtherStores runs the tests of this package once more on each of the other stores.
func TestOnOtherStores(t *testing.T) {
	if os.Getenv(storeVariable) != "" {
		t.Skip("this is such a run")
	}
	t.Run("log", func(t *testing.T) {
		t.Parallel()
		runAllOn(t, "log")
	})
	t.Run("etcd", func(t *testing.T) {
		t.Parallel()
		runAllOn(t, storagetest.StartEtcd(t).URL)
	})
}

func runAllOn(t *testing.T, store string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Upstream's packages are the oracle of what has nothing to do with the store.
	cmd := exec.CommandContext(t.Context(), program, "-test.skip=Upstream|Oracle", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), storeVariable+"="+store)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

var worlds atomic.Int64

// openStore opens an empty store.
func openStore(t testing.TB) storage.Store {
	t.Helper()
	switch where := os.Getenv(storeVariable); where {
	case "":
		s, err := embedded.Open(embedded.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	case "log":
		return storagetest.NewLog(rand.Uint64()).Open()
	default:
		s, err := etcd.Open(t.Context(), etcd.Options{
			Servers: []string{where}, Base: "/registry/", Prefix: fmt.Sprintf("/world%d-%d/", os.Getpid(), worlds.Add(1)),
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}
