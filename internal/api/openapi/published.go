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
)

// published is all that is served of one catalog.
type published struct {
	groups   *resource.PerGroup[[]*entry] // the documents of v3
	all      *whole                       // that of v2
	services []*resource.APIService       // who serves what is in neither

	index func() (index, error) // made once
}

// index is the list of v3 documents.
type index struct {
	text []byte
	etag string
}

// publish describes catalog. Documents of last (which may be nil) that did not change are taken over, the
// texts of the others are let go of.
func publish(catalog *resource.Catalog, last *published, c *cache) *published {
	var known *resource.PerGroup[[]*entry]
	if last != nil {
		known = last.groups
		last.all.forget(c)
	}
	groups := resource.ForGroups(catalog, known, func(was []*entry, is *resource.Group) []*entry {
		next := entriesOf(is, was)
		for _, e := range was {
			if !slices.Contains(next, e) {
				e.forget(c)
			}
		}
		return next
	})
	p := &published{groups: groups, all: &whole{groups: groups}, services: catalog.APIServices()}
	p.index = sync.OnceValues(func() (index, error) { return p.newIndex(nil) })
	return p
}

// entriesOf describes the versions of a group, which is nil where there is none any longer.
func entriesOf(g *resource.Group, was []*entry) (next []*entry) {
	if g == nil {
		return nil
	}
	for _, version := range g.Versions {
		if g.Resources[version] == nil {
			continue // another server describes it
		}
		e := &entry{name: "apis/" + g.Name + "/" + version, versions: g.Resources[version]}
		if g.Name == "" {
			e.name = "api/" + version
		}
		same := func(old *entry) bool { return old.name == e.name && slices.Equal(old.versions, e.versions) }
		if i := slices.IndexFunc(was, same); i >= 0 {
			e = was[i]
		}
		next = append(next, e)
	}
	return next
}

// find returns the v3 document of a path below /openapi/v3/, or nil.
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

// newIndex joins what each document says of itself, and those of others, ordered by name as encoding/json orders a map.
func (p *published) newIndex(theirs []*entry) (index, error) {
	entries := theirs
	for of := range p.groups.All() {
		entries = append(entries, of...)
	}
	slices.SortFunc(entries, func(a, b *entry) int { return strings.Compare(a.name, b.name) })
	const about = 192 // bytes, of most
	text := append(make([]byte, 0, len(entries)*about), `{"paths":{`...)
	sums, buf := sha256.New(), []byte{} // the ETag is over the sums, which are the fewest bytes that differ
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

// served is a document, in each of its forms.
type served interface {
	// hash names the content.
	hash() (string, error)
	// body is the text, as protobuf if so wanted.
	body(c *cache, protobuf bool) ([]byte, error)
}

// entry is a document of v3: that of a group and version.
type entry struct {
	name     string
	versions []*resource.Version
	texts

	once   sync.Once
	member string // of the index
	sum    string // a part of member
	failed error
}

// hash is made from what the document is made of, so that an index of a thousand does not need a thousand documents.
func (e *entry) hash() (string, error) {
	e.once.Do(func() {
		h := newHash()
		for _, v := range e.versions {
			if err := write(h, v); err != nil {
				e.failed = err
				return
			}
		}
		sum := hexOf(h)
		e.member = inIndex(e.name, sum)
		e.sum = e.member[len(e.member)-len(sum)-2:][:len(sum)]
	})
	return e.sum, e.failed
}

// inIndex is what the index says of a document. Names of groups and versions need no escapes.
func inIndex(name, sum string) string {
	return `"` + name + `":{"serverRelativeURL":"` + serverRelativeURL(name, sum) + `"}`
}

func (e *entry) body(c *cache, protobuf bool) ([]byte, error) {
	return e.text(c, v3, e.versions, protobuf)
}

// whole is the document of v2.
type whole struct {
	groups *resource.PerGroup[[]*entry]
	texts

	once   sync.Once
	sum    string
	failed error
}

// hash is made from those of the documents of v3.
func (d *whole) hash() (string, error) {
	d.once.Do(func() {
		h := newHash()
		for entries := range d.groups.All() {
			for _, e := range entries {
				sum, err := e.hash()
				if err != nil {
					d.failed = err
					return
				}
				h.Write([]byte(sum))
			}
		}
		d.sum = hexOf(h)
	})
	return d.sum, d.failed
}

func (d *whole) body(c *cache, protobuf bool) ([]byte, error) {
	var versions []*resource.Version
	for entries := range d.groups.All() {
		for _, e := range entries {
			versions = append(versions, e.versions...)
		}
	}
	return d.text(c, v2, versions, protobuf)
}

// newHash begins a hash that another program, which may describe the same kinds in other words, begins differently.
func newHash() hash.Hash {
	h := sha256.New()
	h.Write([]byte(resource.KubernetesVersion + "\n" + build()))
	return h
}

func hexOf(h hash.Hash) string { return strings.ToUpper(hex.EncodeToString(h.Sum(nil))) }

// write tells h all that the description of v depends on but the program itself.
func write(h hash.Hash, v *resource.Version) error {
	d := v.Definition
	about := []any{v.GroupVersion, d.Names, d.Namespaced, d.Verbs, v.Status, v.Scale != nil, v.Subresources, v.Type != nil, v.SelectableFields,
		preservesUnknownFields(v)}
	if err := json.NewEncoder(h).Encode(about); err != nil {
		return fmt.Errorf("hash %s: %w", v.GroupVersionKind(), err)
	}
	if v.OpenAPIV3Schema != nil {
		h.Write(v.OpenAPIV3Schema())
	}
	return nil
}

// build names the program, for another one may describe the same kinds in other words.
var build = sync.OnceValue(func() string {
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

// texts are the forms of one document.
type texts struct{ json, protobuf slot }

func (t *texts) forget(c *cache) {
	c.forget(&t.json)
	c.forget(&t.protobuf)
}

// text is the document of versions.
func (t *texts) text(c *cache, e edition, versions []*resource.Version, protobuf bool) ([]byte, error) {
	text := func() ([]byte, error) {
		return c.get(&t.json, func() ([]byte, error) {
			d, err := newDocument(e, versions)
			if err != nil {
				return nil, err
			}
			text := d.text()
			return text, d.failed
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
