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
	catalog  *resource.Catalog
	versions map[string]*entry // v3, by the path of group and version
	all      *entry            // v2

	once   sync.Once
	text   []byte
	etag   string
	failed error
}

// publish describes catalog. Documents of last (which may be nil) that did not change are taken over.
func publish(catalog *resource.Catalog, last *published, c *cache) *published {
	p := &published{catalog: catalog, versions: map[string]*entry{}, all: &entry{}}
	for g := range catalog.Groups() {
		for _, version := range g.Versions {
			name := "apis/" + g.Name + "/" + version
			if g.Name == "" {
				name = "api/" + version
			}
			resources := g.Resources[version]
			if len(resources) == 0 {
				continue
			}
			e := &entry{name: name, versions: resources}
			if last != nil {
				if old := last.versions[name]; old != nil && slices.Equal(old.versions, resources) {
					e = old
				}
			}
			p.versions[name] = e
			p.all.versions = append(p.all.versions, resources...)
			p.all.parts = append(p.all.parts, e)
		}
	}
	if last != nil {
		last.forget(p, c)
	}
	return p
}

// forget lets go of the texts that next does not serve.
func (p *published) forget(next *published, c *cache) {
	p.all.forget(c)
	for name, e := range p.versions {
		if next.versions[name] != e {
			e.forget(c)
		}
	}
}

// index is the list of v3 documents, and its ETag.
func (p *published) index() ([]byte, string, error) {
	p.once.Do(func() {
		type document struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		}
		paths := make(map[string]document, len(p.versions))
		for name, e := range p.versions {
			h, err := e.hash()
			if err != nil {
				p.failed = err
				return
			}
			paths[name] = document{serverRelativeURL(name, h)}
		}
		if p.text, p.failed = json.Marshal(map[string]any{"paths": paths}); p.failed == nil {
			p.etag = `"` + digest(p.text) + `"`
		}
	})
	return p.text, p.etag, p.failed
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return strings.ToUpper(hex.EncodeToString(sum[:]))
}

// entry is one document, in each of its forms.
type entry struct {
	name     string
	versions []*resource.Version
	parts    []*entry // of the v2 document: those of v3

	once     sync.Once
	sum      string
	failed   error
	json     slot
	protobuf slot
}

func (e *entry) forget(c *cache) {
	c.forget(&e.json)
	c.forget(&e.protobuf)
}

// hash names the content of the document. It is made from what the document is made of,
// so that an index of a thousand does not need a thousand documents.
func (e *entry) hash() (string, error) {
	e.once.Do(func() {
		h := sha256.New()
		h.Write([]byte(resource.KubernetesVersion + "\n" + build()))
		for _, v := range e.versions {
			if e.parts == nil {
				e.failed = write(h, v)
			}
		}
		for _, p := range e.parts {
			sum, err := p.hash()
			if err != nil {
				e.failed = err
			}
			h.Write([]byte(sum))
		}
		e.sum = strings.ToUpper(hex.EncodeToString(h.Sum(nil)))
	})
	return e.sum, e.failed
}

// write tells h all that the description of v depends on but the program itself.
func write(h hash.Hash, v *resource.Version) error {
	d := v.Definition
	about := []any{v.GroupVersion, d.Names, d.Namespaced, d.Verbs, v.Status, v.Scale != nil, v.Subresources, v.Type != nil, v.SelectableFields,
		d.Custom != nil && d.Custom.PreserveUnknownFields}
	if err := json.NewEncoder(h).Encode(about); err != nil {
		return fmt.Errorf("hash %s: %w", v.GroupVersionKind(), err)
	}
	if v.OpenAPIV3Schema != nil {
		h.Write(v.OpenAPIV3Schema())
	}
	return nil
}

// build names the program, for another one may describe the same kinds in other words.
func build() string {
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
}

// body is the text of the document.
func (e *entry) body(c *cache, ed edition, protobuf bool) ([]byte, error) {
	text := func() ([]byte, error) {
		return c.get(&e.json, func() ([]byte, error) {
			d, err := newDocument(ed, e.versions)
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
	return c.get(&e.protobuf, func() ([]byte, error) {
		json, err := text()
		if err != nil {
			return nil, err
		}
		return newTranscoder(ed).encode(json)
	})
}
