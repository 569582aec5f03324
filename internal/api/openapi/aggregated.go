package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// pathOf returns the path of the group version of s, without the leading slash.
func pathOf(s *catalog.APIService) string {
	if s.GroupVersion.Group == "" {
		return "api/" + s.GroupVersion.Version
	}
	return "apis/" + s.GroupVersion.Group + "/" + s.GroupVersion.Version
}

// aggregatedService returns the APIService whose v3 document has the given path below /openapi/v3/. It returns nil
// if there is none.
func (p *published) aggregatedService(path string) *catalog.APIService {
	if i := slices.IndexFunc(p.services, func(s *catalog.APIService) bool { return pathOf(s) == path }); i >= 0 {
		return p.services[i]
	}
	return nil
}

// aggregatedEntries returns the v3 documents of other servers. It queries the servers concurrently.
func (s *server) aggregatedEntries(ctx context.Context, services []*catalog.APIService) (entries []*entry) {
	hashes := make([]string, len(services))
	var queries sync.WaitGroup
	for i, service := range services {
		queries.Go(func() {
			if hashes[i] = s.aggregated.OpenAPIV3Hash(ctx, service); hashes[i] == "" {
				hashes[i], _ = s.converted(ctx, service).hash() // never fails
			}
		})
	}
	queries.Wait()
	for i, service := range services {
		if hashes[i] != "" {
			entries = append(entries, newHashedEntry(pathOf(service), hashes[i]))
		}
	}
	return entries
}

// newHashedEntry returns a document whose hash is known.
func newHashedEntry(name, hash string) *entry {
	e := &entry{name: name}
	e.once.Do(func() { e.sum, e.member = hash, indexMember(name, hash) })
	return e
}

// merged is the v2 document of all kinds that this server and other servers serve.
type merged struct {
	local     *localV2
	hashes    []string // name and document hash of each APIService
	documents []aggregatedV2
	texts
}

// aggregatedV2 is the v2 document of another server. Only one group version of the document is used.
type aggregatedV2 struct {
	path string // of the group version, with a slash at both ends
	text []byte
}

// v2Document returns the v2 document of all group versions.
func (s *server) v2Document(ctx context.Context, p *published) servedDocument {
	if len(p.services) == 0 {
		return p.v2
	}
	m := &merged{local: p.v2, hashes: make([]string, len(p.services)), documents: make([]aggregatedV2, len(p.services))}
	var queries sync.WaitGroup
	for i, service := range p.services {
		queries.Go(func() {
			text, hash := s.aggregated.OpenAPIV2(ctx, service)
			m.hashes[i] = service.Name + hash
			m.documents[i] = aggregatedV2{"/" + pathOf(service) + "/", text}
		})
	}
	queries.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.merged; last != nil && last.local == m.local && slices.Equal(last.hashes, m.hashes) {
		return last
	} else if last != nil {
		last.remove(s.cache)
	}
	s.merged = m
	return m
}

// hash implements servedDocument.
func (m *merged) hash() (string, error) {
	sum, err := m.local.hash()
	if err != nil {
		return "", err
	}
	h := newHash()
	h.Write([]byte(sum + strings.Join(m.hashes, "\n")))
	return hexOf(h), nil
}

// body implements servedDocument.
func (m *merged) body(c *cache, protobuf bool) ([]byte, error) {
	text := func() ([]byte, error) {
		return c.get(&m.json, func() ([]byte, error) { return m.merge(c) })
	}
	if !protobuf {
		return text()
	}
	return c.get(&m.protobuf, func() ([]byte, error) {
		json, err := text()
		if err != nil {
			return nil, err
		}
		return newTranscoder(v2).encode(json)
	})
}

// merge adds the group versions of other servers to the local document. Definitions with the same name but
// different content are renamed. A document that cannot be parsed or added is left out, so that one server does
// not affect the others.
func (m *merged) merge(c *cache) ([]byte, error) {
	local, err := m.local.body(c, false)
	if err != nil {
		return nil, err
	}
	var all spec.Swagger
	if err := json.Unmarshal(local, &all); err != nil {
		return nil, fmt.Errorf("decode the local OpenAPI v2 document: %w", err)
	}
	for _, f := range m.documents {
		if next, ok := f.addTo(all); ok {
			all = next
		}
	}
	return json.Marshal(&all)
}

// read returns the part of the document that describes the group version.
func (f *aggregatedV2) read() (*spec.Swagger, error) {
	var doc spec.Swagger
	if err := json.Unmarshal(f.text, &doc); err != nil {
		return nil, err
	}
	if doc.Paths == nil {
		return nil, errors.New("the document has no paths")
	}
	return aggregator.FilterSpecByPathsWithoutSideEffects(&doc, []string{f.path}), nil
}

// converted is the v3 document of a group version whose server provides only a v2 document.
type converted struct {
	aggregatedV2
	sourceHash string // hash of the v2 document; "" if the server has no document
}

func (s *server) converted(ctx context.Context, service *catalog.APIService) *converted {
	text, hash := s.aggregated.OpenAPIV2(ctx, service)
	if len(text) == 0 {
		hash = ""
	}
	return &converted{aggregatedV2{"/" + pathOf(service) + "/", text}, hash}
}

// hash implements servedDocument. It returns "" if there is no document.
func (d *converted) hash() (string, error) {
	if d.sourceHash == "" {
		return "", nil
	}
	h := newHash()
	h.Write([]byte(d.path + d.sourceHash))
	return hexOf(h), nil
}

// body implements servedDocument. It does not cache the document, because few servers lack v3 and clients cache the
// response.
func (d *converted) body(_ *cache, protobuf bool) (text []byte, err error) {
	defer func() {
		if p := recover(); p != nil { // upstream's code panics on some invalid documents
			err = fmt.Errorf("convert the OpenAPI v2 document of %s: %v", d.path, p)
		}
	}()
	part, err := d.read()
	if err == nil {
		text, err = json.Marshal(openapiconv.ConvertV2ToV3(part))
	}
	if err != nil || !protobuf {
		return text, err
	}
	return newTranscoder(v3).encode(text)
}

// addTo returns a copy of the document all to which it has added f. If it cannot add f, it
// returns the unchanged document and false. Upstream's code panics on some invalid documents.
func (f *aggregatedV2) addTo(all spec.Swagger) (_ spec.Swagger, ok bool) {
	defer func() {
		if p := recover(); p != nil {
			slog.Warn("cannot add the OpenAPI document of an aggregated API server", "path", f.path, "panic", p)
			ok = false
		}
	}()
	part, err := f.read()
	if err != nil {
		return all, false
	}
	all.Paths = &spec.Paths{VendorExtensible: all.Paths.VendorExtensible, Paths: maps.Clone(all.Paths.Paths)}
	all.Definitions, all.Parameters = maps.Clone(all.Definitions), maps.Clone(all.Parameters)
	all.Responses = maps.Clone(all.Responses)
	err = aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(&all, part)
	return all, err == nil
}
