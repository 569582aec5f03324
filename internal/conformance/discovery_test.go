package conformance_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

const (
	asAggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
	asGroup      = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscovery"
)

// testDiscovery compares all discovery and OpenAPI documents, except for absent resources.
func testDiscovery(t *testing.T, p *pair) {
	for _, path := range []string{"/api", "/apis"} {
		p.discoveryDocument(t, path, "")
		p.discoveryDocument(t, path, asAggregated)
	}
	p.discoveryDocument(t, "/api/v1", "")
	p.discoveryDocument(t, "/api/v1/", "")
	for _, g := range nested[[]any](p.discoveryDocument(t, "/apis/", "").body, "groups") {
		p.discoveryDocument(t, "/apis/"+nested[string](g, "name"), "")
		for _, v := range nested[[]any](g, "versions") {
			p.discoveryDocument(t, "/apis/"+nested[string](v, "groupVersion"), "")
		}
	}
	p.discoveryDocument(t, "/apis/apps", asGroup)
	p.pruner.reportUnused(t)
	for _, path := range slices.Sorted(maps.Keys(p.openAPIPaths(t))) {
		p.openAPI(t, path)
	}
	p.paths(t, "/openapi/v2")
	p.definitions(t, "/openapi/v2")
	p.fieldNames(t, "/version")
}

// discoveryDocument compares a discovery document of both servers and returns the document of Trellis.
func (p *pair) discoveryDocument(t *testing.T, path, accept string) (got response) {
	t.Helper()
	r := request{method: http.MethodGet, path: path, accept: accept}
	got, want := p.exchange(t, r)
	p.pruner.prune(want.body)
	p.check(t, r, got, want)
	return got
}

// openAPIPaths compares the entries of /openapi/v3 that both servers have. It returns the entries of Trellis.
func (p *pair) openAPIPaths(t *testing.T) map[string]any {
	t.Helper()
	r := request{method: http.MethodGet, path: "/openapi/v3"}
	got, want := p.exchange(t, r)
	names := nested[map[string]any](got.body, "paths")
	maps.DeleteFunc(nested[map[string]any](want.body, "paths"),
		func(name string, _ any) bool { return names[name] == nil })
	p.check(t, r, got, want)
	return names
}

// paths compares an OpenAPI document: the methods of each path that both servers have.
func (p *pair) paths(t *testing.T, path string) {
	t.Helper()
	r := request{method: http.MethodGet, path: path}
	got, want := p.exchange(t, r)
	for _, a := range []*response{&got, &want} {
		all := object{}
		for path, item := range nested[object](a.body, "paths") {
			all[path] = slices.Sorted(maps.Keys(item.(object)))
		}
		a.body = all
	}
	maps.DeleteFunc(want.body.(object), func(path string, _ any) bool { return nested[any](got.body, path) == nil })
	p.check(t, r, got, want)
}

// definitions compares an OpenAPI v2 document: the schemas that both servers have.
func (p *pair) definitions(t *testing.T, path string) {
	t.Helper()
	r := request{method: http.MethodGet, path: path}
	got, want := p.exchange(t, r)
	got.body, want.body = nested[object](got.body, "definitions"), nested[object](want.body, "definitions")
	maps.DeleteFunc(want.body.(object), func(name string, _ any) bool { return nested[any](got.body, name) == nil })
	p.check(t, r, got, want)
}

// openAPI compares an OpenAPI v3 document: the paths and the schemas that both servers have.
func (p *pair) openAPI(t *testing.T, path string) {
	t.Helper()
	r := request{method: http.MethodGet, path: "/openapi/v3/" + path}
	got, want := p.exchange(t, r)
	for _, part := range [][]string{{"paths"}, {"components", "schemas"}} {
		names := nested[object](got.body, part...)
		maps.DeleteFunc(nested[object](want.body, part...), func(name string, _ any) bool { return names[name] == nil })
	}
	p.check(t, r, got, want)
}

// fieldNames compares the names of the fields of a document, but not their values.
func (p *pair) fieldNames(t *testing.T, path string) {
	t.Helper()
	r := request{method: http.MethodGet, path: path}
	got, want := p.exchange(t, r)
	for _, a := range []*response{&got, &want} {
		for name := range nested[map[string]any](a.body) {
			a.body.(map[string]any)[name] = "(any)"
		}
	}
	p.check(t, r, got, want)
}

// listsResource returns a function that reports whether a version's discovery document contains a resource.
func listsResource(plural string) func(response) bool {
	return func(a response) bool {
		return slices.ContainsFunc(nested[[]any](a.body, "resources"),
			func(r any) bool { return nested[string](r, "name") == plural })
	}
}

// text returns v as JSON.
func text(v any) string {
	data, _ := json.Marshal(v)
	return strings.TrimSpace(string(data))
}
