package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// TestMediaCacheIsBounded checks that the cache of Accept headers returns the same media type as negotiate, for
// every type of resource. The cache has a limited number of entries, and their size is limited.
func TestMediaCacheIsBounded(t *testing.T) {
	var c mediaCache
	all := offers(true)
	columns := []resource.Column{{Name: "Name"}}
	kinds := []*resource.Version{nil, {}, {Type: &resource.GoType{}}, {Columns: columns},
		{Type: &resource.GoType{}, Columns: columns}}
	headers := []string{"", mediaJSON, "*/*", kubectlAccept, mediaProtobuf + "," + mediaJSON, mediaProtobuf,
		"text/html", mediaJSON + ";" + strings.Repeat("x", 2*maxCachedHeader)}
	for i := range 10 * maxCachedMedia {
		headers = append(headers, fmt.Sprintf("application/json;q=0.%d", i))
	}
	for range 2 {
		for _, header := range headers {
			for _, v := range kinds {
				got, ok := c.find(header, all, v)
				if want, wantOK := negotiate(header, all, v); ok != wantOK || got != want {
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
	var c mediaCache
	all, v := offers(false), &resource.Version{}
	c.find(mediaJSON, all, v)
	c.find(kubectlAccept, all, v)
	if n := testing.AllocsPerRun(100, func() {
		c.find(mediaJSON, all, v)
		c.find(kubectlAccept, all, v)
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
