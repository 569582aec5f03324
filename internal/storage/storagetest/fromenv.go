package storagetest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
)

// Variable names, in the environment, what tests stand on in place of a store in memory: "log" or the URL of etcd.
const Variable = "TRELLIS_TEST_STORE"

// Named opens an empty store of the kind that Variable says; nil if it says none.
func Named(t testing.TB) storage.Store {
	t.Helper()
	switch where := os.Getenv(Variable); where {
	case "":
		return nil
	case "log":
		return NewLog(rand.Uint64()).Open()
	default:
		s, err := etcd.Open(t.Context(), etcd.Options{Servers: []string{where}, Base: "/registry/", Prefix: fmt.Sprintf("/world%x/", rand.Uint64())})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}
