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
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// documents holds all discovery documents of one catalog. The part of each group is cached after the first
// request. The documents with all groups are assembled for each request and are not cached.
type documents struct {
	groups *catalog.PerGroup[*group]
	etags  map[bool]func() (string, error) // of aggregated discovery; the key is true for /api, false for /apis
}

// newDocuments returns the documents of the given catalog. It reuses the unchanged groups of the previous documents
// in last, which may be nil.
func newDocuments(served *catalog.Catalog, last *documents, aggregated Aggregated) *documents {
	var known *catalog.PerGroup[*group]
	if last != nil {
		known = last.groups
	}
	d := &documents{groups: catalog.ForGroups(served, known, func(_ *group, next *catalog.Group) *group {
		if next == nil {
			return nil
		}
		return &group{source: next, aggregated: aggregated}
	})}
	d.etags = map[bool]func() (string, error){}
	for _, legacy := range []bool{true, false} {
		d.etags[legacy] = func() (string, error) { return d.etag(legacy) }
		if len(served.APIServices()) == 0 { // the documents change only with the catalog
			d.etags[legacy] = sync.OnceValues(d.etags[legacy])
		}
	}
	return d
}

func (d *documents) coreVersions() []string {
	if g := d.groups.Find(""); g != nil {
		return g.source.Versions
	}
	return []string{}
}

func (d *documents) groupList() *metav1.APIGroupList {
	list := &metav1.APIGroupList{Groups: []metav1.APIGroup{}}
	for _, g := range d.groupsOf(false) {
		list.Groups = append(list.Groups, g.apiGroup())
	}
	return list
}

// groupsOf returns the groups of /api or of /apis.
func (d *documents) groupsOf(legacy bool) []*group {
	core := d.groups.Find("")
	var out []*group
	for g := range d.groups.All() {
		if g != nil && (g == core) == legacy {
			out = append(out, g)
		}
	}
	return out
}

// serveAggregated serves the aggregated discovery of /api or /apis.
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

// respond writes a document that consists of parts. It compresses a large document if the client accepts gzip.
func respond(w http.ResponseWriter, r *http.Request, parts [][]byte) {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if size <= gzipped.Threshold || !gzipped.Accepted(r) {
		w.WriteHeader(http.StatusOK)
		_ = write(w, size, parts) // an error means that the client has disconnected
		return
	}
	gzipped.Header(w.Header())
	w.WriteHeader(http.StatusOK)
	z := gzipped.NewWriter(w)
	_ = write(z, size, parts) // an error means that the client has disconnected
	_ = z.Close()
}

// write buffers small parts, so that few large writes are necessary.
func write(w io.Writer, size int, parts [][]byte) error {
	out := bufio.NewWriterSize(w, min(size, 64<<10))
	for _, p := range parts {
		if _, err := out.Write(p); err != nil {
			return err
		}
	}
	return out.Flush()
}

// etag returns the ETag of aggregated discovery. It hashes the hashes of the groups, so that only changed groups
// need a new hash.
func (d *documents) etag(legacy bool) (string, error) {
	groups := d.groupsOf(legacy)
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

// aggregated returns aggregated discovery as a list of parts.
func (d *documents) aggregated(f form, legacy bool) ([][]byte, error) {
	groups := d.groupsOf(legacy)
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

// group holds one group and its part of aggregated discovery. The part is encoded on first use. It is encoded again
// when the resources of an aggregated API server change.
type group struct {
	source     *catalog.Group
	aggregated Aggregated

	mu   sync.Mutex
	docs []*apidiscoveryv2.APIVersionDiscovery // documents of other servers that text contains
	text []byte
	sum  [sha256.Size]byte // of text
}

// json returns the JSON of the group in aggregated discovery, and its hash.
func (g *group) json() ([]byte, [sha256.Size]byte, error) {
	var docs []*apidiscoveryv2.APIVersionDiscovery
	for _, s := range g.source.Aggregated {
		docs = append(docs, g.aggregated(s))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.text == nil || !slices.Equal(g.docs, docs) {
		text, err := json.Marshal(g.discovery())
		if err != nil {
			return nil, g.sum, fmt.Errorf("encode group %q: %w", g.source.Name, err)
		}
		g.docs, g.text, g.sum = docs, text, sha256.Sum256(text)
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
		hasVersion := func(s *catalog.APIService) bool { return s.GroupVersion.Version == name }
		if i := slices.IndexFunc(g.source.Aggregated, hasVersion); i >= 0 {
			version.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
			if known := g.aggregated(g.source.Aggregated[i]); known != nil {
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
