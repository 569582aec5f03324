package storage_test

import (
	"testing"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// TestCodecsOf checks that the longest prefix of a key selects the codec.
func TestCodecsOf(t *testing.T) {
	named := func(name string) storage.Codec {
		return storage.Codec{Encode: func([]byte) ([]byte, error) { return []byte(name), nil }}
	}
	codecs := storage.Codecs{"/registry/pods/": named("pods"), "/registry/": named("all"),
		"/registry/services/specs/": named("services")}
	for key, want := range map[string]string{
		"/registry/pods/ns/a": "pods", "/registry/pods": "all", "/registry/services/endpoints/ns/a": "all",
		"/registry/services/specs/ns/a": "services", "/other/a": "", "": "",
	} {
		got := ""
		if c, ok := codecs.Of(key); ok {
			name, _ := c.Encode(nil)
			got = string(name)
		}
		if got != want {
			t.Errorf("codec of %q: got %q, want %q", key, got, want)
		}
	}
}
