package encoding

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// kubectlAccept is the Accept header of kubectl get.
const kubectlAccept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;" +
	"g=meta.k8s.io,application/json"

// TestMediaCacheIsBounded checks that the cache of Accept headers returns the same media type as negotiate, for
// every type of resource. The cache has a limited number of entries, and their size is limited.
func TestMediaCacheIsBounded(t *testing.T) {
	c := NewNegotiator(true)
	columns := []resource.Column{{Name: "Name"}}
	kinds := []*resource.Version{nil, {}, {Type: &resource.GoType{}}, {Columns: columns},
		{Type: &resource.GoType{}, Columns: columns}}
	headers := []string{"", runtime.ContentTypeJSON, "*/*", kubectlAccept,
		runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON, runtime.ContentTypeProtobuf, "text/html", runtime.ContentTypeJSON + ";" + strings.Repeat("x", 2*maxCachedHeader)}
	for i := range 10 * maxCachedMedia {
		headers = append(headers, fmt.Sprintf("application/json;q=0.%d", i))
	}
	for range 2 {
		for _, header := range headers {
			for _, v := range kinds {
				got, ok := c.Find(header, v)
				if want, wantOK := c.negotiate(header, v); ok != wantOK || got != want {
					t.Fatalf("%q: got %+v %v, want %+v %v", header, got, ok, want, wantOK)
				}
				if n := len(*c.entries.Load()); n > maxCachedMedia {
					t.Fatalf("got %d cached entries, want at most %d", n, maxCachedMedia)
				}
			}
		}
	}
	for key := range *c.entries.Load() {
		if len(key.header) > maxCachedHeader {
			t.Errorf("got a cached header of %d bytes, want at most %d", len(key.header), maxCachedHeader)
		}
	}
}

// TestMediaCacheHits checks that a lookup of a cached header allocates no memory.
func TestMediaCacheHits(t *testing.T) {
	c, v := NewNegotiator(false), &resource.Version{}
	c.Find(runtime.ContentTypeJSON, v)
	c.Find(kubectlAccept, v)
	if n := testing.AllocsPerRun(100, func() {
		c.Find(runtime.ContentTypeJSON, v)
		c.Find(kubectlAccept, v)
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
