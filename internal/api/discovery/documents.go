package discovery

import (
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// documents are all discovery documents of one catalog. Only the map of encoded
// ones changes, under mu.
type documents struct {
	catalog *resource.Catalog
	groups  []*group
	byName  map[string]*group

	mu         sync.Mutex
	aggregated map[aggregatedKey][]byte
	etags      map[bool]string // by legacy
}

type aggregatedKey struct {
	legacy bool
	form
}

// newDocuments describes catalog, with those groups of last (which may be nil) that are still the same.
func newDocuments(catalog *resource.Catalog, last *documents) *documents {
	d := &documents{
		catalog:    catalog,
		byName:     map[string]*group{},
		aggregated: map[aggregatedKey][]byte{},
		etags:      map[bool]string{},
	}
	for source := range catalog.Groups() {
		var g *group
		if last != nil {
			g = last.byName[source.Name]
		}
		if g == nil || !sameGroup(g.source, source) {
			g = &group{source: source}
		}
		d.groups = append(d.groups, g)
		d.byName[source.Name] = g
	}
	return d
}

// sameGroup says whether nothing that discovery tells differs. Versions are immutable,
// so that the same pointer is the same text.
func sameGroup(a, b *resource.Group) bool {
	return a == b || a.Preferred == b.Preferred && slices.Equal(a.Versions, b.Versions) &&
		maps.EqualFunc(a.Resources, b.Resources, slices.Equal)
}

func (d *documents) legacyVersions() []string {
	if g := d.byName[""]; g != nil {
		return g.source.Versions
	}
	return []string{}
}

func (d *documents) groupList() *metav1.APIGroupList {
	list := &metav1.APIGroupList{Groups: []metav1.APIGroup{}}
	for _, g := range d.groups {
		if g.source.Name != "" {
			list.Groups = append(list.Groups, g.apiGroup())
		}
	}
	return list
}

// serveAggregated answers /api or /apis with everything below it.
func (d *documents) serveAggregated(w http.ResponseWriter, r *http.Request, f form, legacy bool) {
	etag, err := d.etag(legacy)
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
	body, err := d.encodeAggregated(f, legacy)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h.Set("Content-Type", f.mediaType+";g=apidiscovery.k8s.io;v="+f.version+";as=APIGroupDiscoveryList")
	w.WriteHeader(http.StatusOK)
	w.Write(body)
}

// within yields the groups of /api or of /apis.
func (d *documents) within(legacy bool) []*group {
	var out []*group
	for _, g := range d.groups {
		if (g.source.Name == "") == legacy {
			out = append(out, g)
		}
	}
	return out
}

// etag is over the parts, so that one changed group costs its own hash alone.
func (d *documents) etag(legacy bool) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.etags[legacy]; e != "" {
		return e, nil
	}
	hash := sha512.New()
	for _, g := range d.within(legacy) {
		if err := g.encode(); err != nil {
			return "", err
		}
		hash.Write(g.sum[:])
	}
	d.etags[legacy] = `"` + strings.ToUpper(hex.EncodeToString(hash.Sum(nil))) + `"`
	return d.etags[legacy], nil
}

// encodeAggregated puts the encoded groups into one list. v2 and v2beta1 differ in
// nothing but the name.
func (d *documents) encodeAggregated(f form, legacy bool) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := aggregatedKey{legacy, f}
	if body := d.aggregated[key]; body != nil {
		return body, nil
	}
	var body []byte
	var err error
	if f.mediaType == protobufType {
		body, err = d.aggregatedProto(f.version, legacy)
	} else {
		body, err = d.aggregatedJSON(f, legacy)
	}
	if err != nil {
		return nil, err
	}
	d.aggregated[key] = body
	return body, nil
}

func (d *documents) aggregatedJSON(f form, legacy bool) ([]byte, error) {
	body := []byte(`{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/` + f.version + `","metadata":{},"items":[`)
	for i, g := range d.within(legacy) {
		if i > 0 {
			body = append(body, ',')
		}
		if err := g.encode(); err != nil {
			return nil, err
		}
		body = append(body, g.json...)
	}
	return formatJSON(append(body, "]}\n"...), f)
}

func (d *documents) aggregatedProto(version string, legacy bool) ([]byte, error) {
	raw, err := (&apidiscoveryv2.APIGroupDiscoveryList{}).Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode the list of groups: %w", err)
	}
	const items = 2<<3 | 2 // field 2 of APIGroupDiscoveryList, length-delimited
	for _, g := range d.within(legacy) {
		b, err := g.discovery().Marshal()
		if err != nil {
			return nil, fmt.Errorf("encode group %q: %w", g.source.Name, err)
		}
		raw = append(binary.AppendUvarint(append(raw, items), uint64(len(b))), b...)
	}
	return wrapProto(raw, "apidiscovery.k8s.io/"+version, "APIGroupDiscoveryList")
}

// group is one group; its encoded form is made once.
type group struct {
	source *resource.Group

	once sync.Once
	json []byte
	sum  [sha512.Size]byte
	err  error
}

// encode makes json and sum, once.
func (g *group) encode() error {
	g.once.Do(func() {
		if g.json, g.err = json.Marshal(g.discovery()); g.err != nil {
			g.err = fmt.Errorf("encode group %q: %w", g.source.Name, g.err)
			return
		}
		g.sum = sha512.Sum512(g.json)
	})
	return g.err
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
		for _, v := range g.source.Resources[name] {
			version.Resources = append(version.Resources, resourceDiscovery(v))
		}
		out.Versions = append(out.Versions, version)
	}
	return out
}
