package openapi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// published holds all documents of one catalog.
type published struct {
	groups   *catalog.PerGroup[[]*entry] // v3 documents
	v2       *localV2                    // v2 document
	services []*catalog.APIService       // APIServices of other servers, which these documents do not describe

	index func() (index, error) // built once
}

// index is the encoded index of the v3 documents.
type index struct {
	text []byte
	etag string
}

// publish returns the documents of the given catalog. It reuses the unchanged documents of the previous catalog in
// last, which may be nil. It removes the other documents of last from the cache.
func publish(served *catalog.Catalog, last *published, c *cache) *published {
	var known *catalog.PerGroup[[]*entry]
	if last != nil {
		known = last.groups
		last.v2.remove(c)
	}
	groups := catalog.ForGroups(served, known, func(previous []*entry, g *catalog.Group) []*entry {
		next := groupEntries(g, previous)
		for _, e := range previous {
			if !slices.Contains(next, e) {
				e.remove(c)
			}
		}
		return next
	})
	p := &published{groups: groups, v2: &localV2{groups: groups}, services: served.APIServices()}
	p.index = sync.OnceValues(func() (index, error) { return p.newIndex(nil) })
	return p
}

// groupEntries returns the documents of a group. It returns nil if the group no longer exists.
func groupEntries(g *catalog.Group, previous []*entry) (next []*entry) {
	if g == nil {
		return nil
	}
	for _, version := range g.Versions {
		if g.Resources[version] == nil {
			continue // another server serves it
		}
		e := &entry{name: "apis/" + g.Name + "/" + version, versions: g.Resources[version]}
		if g.Name == "" {
			e.name = "api/" + version
		}
		same := func(old *entry) bool { return old.name == e.name && slices.Equal(old.versions, e.versions) }
		if i := slices.IndexFunc(previous, same); i >= 0 {
			e = previous[i]
		}
		next = append(next, e)
	}
	return next
}

// find returns the v3 document at a path below /openapi/v3/, or nil.
func (p *published) find(path string) *entry {
	name, ok := strings.CutPrefix(path, "apis/")
	group, _, _ := strings.Cut(name, "/")
	if !ok {
		group = ""
	}
	entries := p.groups.Find(group)
	if i := slices.IndexFunc(entries, func(e *entry) bool { return e.name == path }); i >= 0 {
		return entries[i]
	}
	return nil
}

// newIndex returns the index of all v3 documents, including those of other servers. It is sorted by name, as
// encoding/json sorts a map.
func (p *published) newIndex(aggregated []*entry) (index, error) {
	entries := aggregated
	for group := range p.groups.All() {
		entries = append(entries, group...)
	}
	slices.SortFunc(entries, func(a, b *entry) int { return strings.Compare(a.name, b.name) })
	const entrySize = 192 // typical size of an entry in bytes
	text := append(make([]byte, 0, len(entries)*entrySize), `{"paths":{`...)
	sums, buf := sha256.New(), []byte{} // the ETag covers only the hashes, which are short
	for i, e := range entries {
		sum, err := e.hash()
		if err != nil {
			return index{}, err
		}
		buf = append(buf[:0], sum...)
		sums.Write(buf)
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, e.member...)
	}
	text = append(text, "}}"...)
	return index{text, `"` + hexOf(sums) + `"`}, nil
}

// servedDocument is a document in all of its forms.
type servedDocument interface {
	// hash returns the hash of the content.
	hash() (string, error)
	// body returns the document as JSON or protobuf.
	body(c *cache, protobuf bool) ([]byte, error)
}

// entry is the v3 document of one group version.
type entry struct {
	name     string
	versions []*resource.Version
	texts

	once   sync.Once
	member string // entry of the document in the object "paths" of the index
	sum    string // substring of member
	err    error
}

// hash returns a hash of the inputs of the document, so that the index can be built before the document.
func (e *entry) hash() (string, error) {
	e.once.Do(func() {
		h := newHash()
		for _, v := range e.versions {
			if err := hashVersion(h, v); err != nil {
				e.err = err
				return
			}
		}
		sum := hexOf(h)
		e.member = indexMember(e.name, sum)
		e.sum = e.member[len(e.member)-len(sum)-2:][:len(sum)]
	})
	return e.sum, e.err
}

// indexMember returns the member of the index for a document. Names of groups and versions need no escapes.
func indexMember(name, sum string) string {
	return `"` + name + `":{"serverRelativeURL":"` + serverRelativeURL(name, sum) + `"}`
}

func (e *entry) body(c *cache, protobuf bool) ([]byte, error) {
	return e.text(c, v3, e.versions, protobuf)
}

// localV2 is the v2 document of the kinds that this server serves.
type localV2 struct {
	groups *catalog.PerGroup[[]*entry]
	texts

	once sync.Once
	sum  string
	err  error
}

// hash returns a hash over the hashes of the v3 documents.
func (d *localV2) hash() (string, error) {
	d.once.Do(func() {
		h := newHash()
		for entries := range d.groups.All() {
			for _, e := range entries {
				sum, err := e.hash()
				if err != nil {
					d.err = err
					return
				}
				h.Write([]byte(sum))
			}
		}
		d.sum = hexOf(h)
	})
	return d.sum, d.err
}

func (d *localV2) body(c *cache, protobuf bool) ([]byte, error) {
	var versions []*resource.Version
	for entries := range d.groups.All() {
		for _, e := range entries {
			versions = append(versions, e.versions...)
		}
	}
	return d.text(c, v2, versions, protobuf)
}

// newHash returns a hash that includes the build of the program, because another build may describe the same
// kinds differently.
func newHash() hash.Hash {
	h := sha256.New()
	h.Write([]byte(resource.KubernetesVersion + "\n" + buildID()))
	return h
}

func hexOf(h hash.Hash) string { return strings.ToUpper(hex.EncodeToString(h.Sum(nil))) }

// hashVersion writes all data of v that affects its description to h.
func hashVersion(h hash.Hash, v *resource.Version) error {
	d := v.Definition
	inputs := []any{v.GroupVersion, d.Names, d.Namespaced, d.Verbs, v.Status, v.Scale != nil, v.Subresources,
		v.Type != nil, v.SelectableFields, v.Definition.PreserveUnknownFields}
	if err := json.NewEncoder(h).Encode(inputs); err != nil {
		return fmt.Errorf("hash %s: %w", v.GroupVersionKind(), err)
	}
	if v.OpenAPIV3Schema != nil {
		h.Write(v.OpenAPIV3Schema())
	}
	return nil
}

// buildID identifies the build by the version and the dependencies of the program.
var buildID = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	out := info.Main.Version + " " + settings["vcs.revision"] + " " + settings["vcs.modified"]
	for _, m := range info.Deps {
		out += "\n" + m.Path + " " + m.Version
	}
	return out
})

// texts holds one document as JSON and as protobuf.
type texts struct{ json, protobuf textSlot }

func (t *texts) remove(c *cache) {
	c.remove(&t.json)
	c.remove(&t.protobuf)
}

// text returns the document that describes versions.
func (t *texts) text(c *cache, e edition, versions []*resource.Version, protobuf bool) ([]byte, error) {
	text := func() ([]byte, error) {
		return c.get(&t.json, func() ([]byte, error) {
			d, err := newDocument(e, versions)
			if err != nil {
				return nil, err
			}
			text := d.text()
			return text, d.err
		})
	}
	if !protobuf {
		return text()
	}
	return c.get(&t.protobuf, func() ([]byte, error) {
		json, err := text()
		if err != nil {
			return nil, err
		}
		return newTranscoder(e).encode(json)
	})
}
