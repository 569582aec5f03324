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

	"github.com/trellis-k8s/trellis/internal/resource"
)

// pathOf is that of a group version, without the slash it begins with.
func pathOf(s *resource.APIService) string {
	if s.GroupVersion.Group == "" {
		return "api/" + s.GroupVersion.Version
	}
	return "apis/" + s.GroupVersion.Group + "/" + s.GroupVersion.Version
}

// theirs returns who describes the group version of a path below /openapi/v3/; nil: this server does.
func (p *published) theirs(path string) *resource.APIService {
	if i := slices.IndexFunc(p.services, func(s *resource.APIService) bool { return pathOf(s) == path }); i >= 0 {
		return p.services[i]
	}
	return nil
}

// entriesOf are the documents of v3 that others have. They are asked at the same time.
func (s *server) entriesOf(ctx context.Context, services []*resource.APIService) (entries []*entry) {
	hashes := make([]string, len(services))
	var asking sync.WaitGroup
	for i, service := range services {
		asking.Go(func() {
			if hashes[i] = s.theirs.OpenAPIV3Hash(ctx, service); hashes[i] == "" {
				hashes[i], _ = s.converted(ctx, service).hash() // it does not fail
			}
		})
	}
	asking.Wait()
	for i, service := range services {
		if hashes[i] != "" {
			entries = append(entries, described(pathOf(service), hashes[i]))
		}
	}
	return entries
}

// described is a document whose hash is known.
func described(name, hash string) *entry {
	e := &entry{name: name}
	e.once.Do(func() { e.sum, e.member = hash, inIndex(name, hash) })
	return e
}

// merged is the document of v2 with those of others in it.
type merged struct {
	ours   *whole
	hashes []string // of the others, by service
	theirs []foreign
	texts
}

// foreign is another server's document of v2, of which a group version is wanted.
type foreign struct {
	path string // of the group version, with slashes around it
	text []byte
}

// whole is the document of v2 of all that is served.
func (s *server) whole(ctx context.Context, p *published) served {
	if len(p.services) == 0 {
		return p.all
	}
	m := &merged{ours: p.all, hashes: make([]string, len(p.services)), theirs: make([]foreign, len(p.services))}
	var asking sync.WaitGroup
	for i, service := range p.services {
		asking.Go(func() {
			text, hash := s.theirs.OpenAPIV2(ctx, service)
			m.hashes[i] = service.Name + hash
			m.theirs[i] = foreign{"/" + pathOf(service) + "/", text}
		})
	}
	asking.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.merged; last != nil && last.ours == m.ours && slices.Equal(last.hashes, m.hashes) {
		return last
	} else if last != nil {
		last.forget(s.cache)
	}
	s.merged = m
	return m
}

// hash implements served.
func (m *merged) hash() (string, error) {
	sum, err := m.ours.hash()
	if err != nil {
		return "", err
	}
	h := newHash()
	h.Write([]byte(sum + strings.Join(m.hashes, "\n")))
	return hexOf(h), nil
}

// body implements served.
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

// merge adds to the server's own document what others say of the group versions that they serve. Definitions that are called the
// same and say something else get another name. A document that cannot be read or added is left out: it is that of one server among many.
func (m *merged) merge(c *cache) ([]byte, error) {
	ours, err := m.ours.body(c, false)
	if err != nil {
		return nil, err
	}
	var all spec.Swagger
	if err := json.Unmarshal(ours, &all); err != nil {
		return nil, fmt.Errorf("openapi: read the server's own document: %w", err)
	}
	for _, f := range m.theirs {
		if next, ok := f.addTo(all); ok {
			all = next
		}
	}
	return json.Marshal(&all)
}

// read returns what the document says of the group version.
func (f *foreign) read() (*spec.Swagger, error) {
	var theirs spec.Swagger
	if err := json.Unmarshal(f.text, &theirs); err != nil {
		return nil, err
	}
	if theirs.Paths == nil {
		return nil, errors.New("there are no paths")
	}
	return aggregator.FilterSpecByPathsWithoutSideEffects(&theirs, []string{f.path}), nil
}

// converted is the document of v3 of a group version whose server describes it in v2 alone.
type converted struct {
	foreign
	of string // hash of that document; "" where there is none
}

func (s *server) converted(ctx context.Context, service *resource.APIService) *converted {
	text, hash := s.theirs.OpenAPIV2(ctx, service)
	if len(text) == 0 {
		hash = ""
	}
	return &converted{foreign{"/" + pathOf(service) + "/", text}, hash}
}

// hash implements served; it is "" where there is no document.
func (d *converted) hash() (string, error) {
	if d.of == "" {
		return "", nil
	}
	h := newHash()
	h.Write([]byte(d.path + d.of))
	return hexOf(h), nil
}

// body implements served. The text is made for each who asks: there are few such servers, and clients keep what they have read.
func (d *converted) body(_ *cache, protobuf bool) (text []byte, err error) {
	defer func() {
		if p := recover(); p != nil { // as in addTo
			err = fmt.Errorf("openapi: convert what another API server says of %s: %v", d.path, p)
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

// addTo returns all with the document in it, or false. Upstream's code panics on some that are not sound.
func (f *foreign) addTo(all spec.Swagger) (_ spec.Swagger, ok bool) {
	defer func() {
		if p := recover(); p != nil {
			slog.Warn("the OpenAPI document of another API server cannot be added", "path", f.path, "problem", p)
			ok = false
		}
	}()
	part, err := f.read()
	if err != nil {
		return all, false
	}
	all.Paths = &spec.Paths{VendorExtensible: all.Paths.VendorExtensible, Paths: maps.Clone(all.Paths.Paths)}
	all.Definitions, all.Parameters, all.Responses = maps.Clone(all.Definitions), maps.Clone(all.Parameters), maps.Clone(all.Responses)
	err = aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(&all, part)
	return all, err == nil
}
