package discovery

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/api/gzipped"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// documents are all discovery documents of one catalog. Each group has its part of them ready once it has been asked for;
// what holds all groups is put together of those anew for each request, and is not kept.
type documents struct {
	groups *resource.PerGroup[*group]
	etags  map[bool]func() (string, error) // of aggregated discovery, by legacy
}

// newDocuments describes catalog, with those groups of last (which may be nil) that are still the same.
func newDocuments(catalog *resource.Catalog, last *documents, theirs Aggregated) *documents {
	var known *resource.PerGroup[*group]
	if last != nil {
		known = last.groups
	}
	d := &documents{groups: resource.ForGroups(catalog, known, func(_ *group, is *resource.Group) *group {
		if is == nil {
			return nil
		}
		return &group{source: is, theirs: theirs}
	})}
	d.etags = map[bool]func() (string, error){}
	for _, legacy := range []bool{true, false} {
		d.etags[legacy] = func() (string, error) { return d.etag(legacy) }
		if len(catalog.APIServices()) == 0 { // nothing changes before the catalog does
			d.etags[legacy] = sync.OnceValues(d.etags[legacy])
		}
	}
	return d
}

func (d *documents) legacyVersions() []string {
	if g := d.groups.Find(""); g != nil {
		return g.source.Versions
	}
	return []string{}
}

func (d *documents) groupList() *metav1.APIGroupList {
	list := &metav1.APIGroupList{Groups: []metav1.APIGroup{}}
	for _, g := range d.within(false) {
		list.Groups = append(list.Groups, g.apiGroup())
	}
	return list
}

// within returns the groups of /api or of /apis.
func (d *documents) within(legacy bool) []*group {
	core := d.groups.Find("")
	var out []*group
	for g := range d.groups.All() {
		if g != nil && (g == core) == legacy {
			out = append(out, g)
		}
	}
	return out
}

// serveAggregated answers /api or /apis with everything below it.
func (d *documents) serveAggregated(w http.ResponseWriter, r *http.Request, f form, legacy bool) {
	etag, err := d.etags[legacy]()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("ETag", etag)
	h.Set("Vary", "Accept")
	h.Set("Cache-Control", "public")
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	parts, err := d.aggregated(f, legacy)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h.Set("Content-Type", f.mediaType+";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	respond(w, r, parts)
}

// respond answers with a document in pieces, compressed if it is large and the client accepts that.
func respond(w http.ResponseWriter, r *http.Request, parts [][]byte) {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if size <= gzipped.Threshold || !gzipped.Accepted(r) {
		w.WriteHeader(http.StatusOK)
		_ = write(w, size, parts) // the client has gone; there is nobody to tell
		return
	}
	gzipped.Header(w.Header())
	w.WriteHeader(http.StatusOK)
	z := gzipped.NewWriter(w)
	_ = write(z, size, parts) // the same
	_ = z.Close()
}

// write writes many small pieces as few larger ones.
func write(w io.Writer, size int, parts [][]byte) error {
	out := bufio.NewWriterSize(w, min(size, 64<<10))
	for _, p := range parts {
		if _, err := out.Write(p); err != nil {
			return err
		}
	}
	return out.Flush()
}

// etag is over the hashes of the parts, so that one changed group costs its own hash alone.
func (d *documents) etag(legacy bool) (string, error) {
	groups := d.within(legacy)
	sums := make([]byte, 0, len(groups)*sha256.Size)
	for _, g := range groups {
		_, sum, err := g.json()
		if err != nil {
			return "", err
		}
		sums = append(sums, sum[:]...)
	}
	sum := sha256.Sum256(sums)
	return `"` + strings.ToUpper(hex.EncodeToString(sum[:])) + `"`, nil
}

// aggregated is the list of the encoded groups, in pieces.
func (d *documents) aggregated(f form, legacy bool) ([][]byte, error) {
	groups := d.within(legacy)
	if !f.plainJSON() {
		list := &apidiscoveryv2.APIGroupDiscoveryList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"},
		}
		for _, g := range groups {
			list.Items = append(list.Items, *g.discovery())
		}
		body, err := encode(f.Serializer, f.pretty, list)
		return [][]byte{body}, err
	}
	parts := append(make([][]byte, 0, 2*len(groups)+2),
		[]byte(`{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[`))
	comma := []byte{','}
	for i, g := range groups {
		text, _, err := g.json()
		if err != nil {
			return nil, err
		}
		if i > 0 {
			parts = append(parts, comma)
		}
		parts = append(parts, text)
	}
	return append(parts, []byte("]}\n")), nil
}

// group is one group, with its part of aggregated discovery, made once, and again when another server's part of it changes.
type group struct {
	source *resource.Group
	theirs Aggregated

	mu   sync.Mutex
	of   []*apidiscoveryv2.APIVersionDiscovery // what others said when it was made
	text []byte
	sum  [sha256.Size]byte // of text
}

// json is the group in aggregated discovery, and its hash.
func (g *group) json() ([]byte, [sha256.Size]byte, error) {
	var of []*apidiscoveryv2.APIVersionDiscovery
	for _, s := range g.source.Aggregated {
		of = append(of, g.theirs(s))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.text == nil || !slices.Equal(g.of, of) {
		text, err := json.Marshal(g.discovery())
		if err != nil {
			return nil, g.sum, fmt.Errorf("encode group %q: %w", g.source.Name, err)
		}
		g.of, g.text, g.sum = of, text, sha256.Sum256(text)
	}
	return g.text, g.sum, nil
}

func (g *group) apiGroup() metav1.APIGroup {
	version := func(v string) metav1.GroupVersionForDiscovery {
		return metav1.GroupVersionForDiscovery{GroupVersion: g.source.Name + "/" + v, Version: v}
	}
	out := metav1.APIGroup{Name: g.source.Name, PreferredVersion: version(g.source.Preferred)}
	for _, v := range g.source.Versions {
		out.Versions = append(out.Versions, version(v))
	}
	return out
}

func (g *group) resourceList(version string) *metav1.APIResourceList {
	gv := metav1.GroupVersion{Group: g.source.Name, Version: version}
	list := &metav1.APIResourceList{GroupVersion: gv.String(), APIResources: []metav1.APIResource{}}
	for _, v := range g.source.Resources[version] {
		list.APIResources = append(list.APIResources, apiResources(v)...)
	}
	return list
}

func (g *group) discovery() *apidiscoveryv2.APIGroupDiscovery {
	out := &apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.source.Name}}
	for _, name := range g.source.Versions {
		version := apidiscoveryv2.APIVersionDiscovery{
			Version:   name,
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		}
		if i := slices.IndexFunc(g.source.Aggregated, func(s *resource.APIService) bool { return s.GroupVersion.Version == name }); i >= 0 {
			version.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
			if known := g.theirs(g.source.Aggregated[i]); known != nil {
				version = *known
			}
		}
		for _, v := range g.source.Resources[name] {
			version.Resources = append(version.Resources, resourceDiscovery(v))
		}
		out.Versions = append(out.Versions, version)
	}
	return out
}
