package storagetest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
)

// EnvVar is the environment variable that selects the store of tests: "log", the URL of an etcd, or "" for a
// store in memory.
const EnvVar = "TRELLIS_TEST_STORE"

// FromEnv opens an empty store of the kind that EnvVar selects. It returns nil for "".
func FromEnv(t testing.TB) storage.Store {
	t.Helper()
	switch value := os.Getenv(EnvVar); value {
	case "":
		return nil
	case "log":
		return NewLog(rand.Uint64()).Open()
	default:
		s, err := etcd.Open(t.Context(), etcd.Options{
			Cluster: etcd.Cluster{Servers: []string{value}, Prefix: fmt.Sprintf("/world%x/", rand.Uint64())},
			Base:    "/registry/",
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}
