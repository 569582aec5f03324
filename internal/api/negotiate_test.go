package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// What is kept of Accept headers says the same as reading them again, for every kind of what is asked for, and is bounded
// in number and size whatever clients send.
func TestChoicesAreBounded(t *testing.T) {
	var c mediaCache
	all := offers(true)
	columns := []resource.Column{{Name: "Name"}}
	kinds := []*resource.Version{nil, {}, {Type: &resource.GoType{}}, {Columns: columns}, {Type: &resource.GoType{}, Columns: columns}}
	headers := []string{"", mediaJSON, "*/*", kubectlAccept, mediaProtobuf + "," + mediaJSON, mediaProtobuf, "text/html", mediaJSON + ";" + strings.Repeat("x", 2*maxCachedHeader)}
	for i := range 10 * maxCachedMedia {
		headers = append(headers, fmt.Sprintf("application/json;q=0.%d", i))
	}
	for range 2 {
		for _, header := range headers {
			for _, v := range kinds {
				got, ok := c.find(header, all, v)
				if want, wantOK := negotiate(header, all, v); ok != wantOK || got != want {
					t.Fatalf("%q: %+v %v, want %+v %v", header, got, ok, want, wantOK)
				}
				if n := len(*c.entries.Load()); n > maxCachedMedia {
					t.Fatalf("%d are kept", n)
				}
			}
		}
	}
	for key := range *c.entries.Load() {
		if len(key.header) > maxCachedHeader {
			t.Errorf("a header of %d bytes is kept", len(key.header))
		}
	}
}

// Headers that were seen before cost no more than a look.
func TestChoicesAreKept(t *testing.T) {
	var c mediaCache
	all, v := offers(false), &resource.Version{}
	c.find(mediaJSON, all, v)
	c.find(kubectlAccept, all, v)
	if n := testing.AllocsPerRun(100, func() {
		c.find(mediaJSON, all, v)
		c.find(kubectlAccept, all, v)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
