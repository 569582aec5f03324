package engine

import (
	"os"
	"os/exec"
	"testing"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// TestOnOtherStores runs the tests of this package again with each of the other stores.
func TestOnOtherStores(t *testing.T) {
	if os.Getenv(storagetest.EnvVar) != "" {
		t.Skip("already runs on another store")
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

// runAllOn runs this test binary with another store.
func runAllOn(t *testing.T, store string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The comparisons with upstream's packages are skipped because they are independent of the store.
	cmd := exec.CommandContext(t.Context(), program, "-test.skip=Upstream|Oracle", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), storagetest.EnvVar+"="+store)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// openStore opens an empty store.
func openStore(t testing.TB) storage.Store {
	t.Helper()
	if s := storagetest.FromEnv(t); s != nil {
		return s
	}
	s, err := embedded.Open(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
