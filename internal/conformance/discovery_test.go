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

// Every document of discovery is that of kube-apiserver, but for what is absent.
func testDiscovery(t *testing.T, p *pair) {
	for _, path := range []string{"/api", "/apis"} {
		p.document(t, path, "")
		p.document(t, path, asAggregated)
	}
	p.document(t, "/api/v1", "")
	p.document(t, "/api/v1/", "")
	for _, g := range nested[[]any](p.document(t, "/apis/", "").body, "groups") {
		p.document(t, "/apis/"+nested[string](g, "name"), "")
		for _, v := range nested[[]any](g, "versions") {
			p.document(t, "/apis/"+nested[string](v, "groupVersion"), "")
		}
	}
	p.document(t, "/apis/apps", asGroup)
	p.pruned.unmet(t)
	for _, path := range slices.Sorted(maps.Keys(p.openAPIPaths(t))) {
		p.openAPI(t, path)
	}
	p.paths(t, "/openapi/v2")
	p.definitions(t, "/openapi/v2")
	p.shape(t, "/version")
}

// document compares a document of discovery.
func (p *pair) document(t *testing.T, path, accept string) (ours answer) {
	t.Helper()
	r := request{method: http.MethodGet, path: path, accept: accept}
	ours, theirs := p.exchange(t, r)
	p.pruned.document(theirs.body)
	p.judge(t, r, ours, theirs)
	return ours
}

// openAPIPaths compares what both have a document for, and returns it.
func (p *pair) openAPIPaths(t *testing.T) map[string]any {
	t.Helper()
	r := request{method: http.MethodGet, path: "/openapi/v3"}
	ours, theirs := p.exchange(t, r)
	names := nested[map[string]any](ours.body, "paths")
	maps.DeleteFunc(nested[map[string]any](theirs.body, "paths"), func(name string, _ any) bool { return names[name] == nil })
	p.judge(t, r, ours, theirs)
	return names
}

// paths compares which paths there are, and what can be done at them.
func (p *pair) paths(t *testing.T, path string) {
	t.Helper()
	r := request{method: http.MethodGet, path: path}
	ours, theirs := p.exchange(t, r)
	for _, a := range []*answer{&ours, &theirs} {
		all := object{}
		for path, item := range nested[object](a.body, "paths") {
			all[path] = slices.Sorted(maps.Keys(item.(object)))
		}
		a.body = all
	}
	maps.DeleteFunc(theirs.body.(object), func(path string, _ any) bool { return nested[any](ours.body, path) == nil })
	p.judge(t, r, ours, theirs)
}

// definitions compares the schemas that both have.
func (p *pair) definitions(t *testing.T, path string) {
	t.Helper()
	r := request{method: http.MethodGet, path: path}
	ours, theirs := p.exchange(t, r)
	ours.body, theirs.body = nested[object](ours.body, "definitions"), nested[object](theirs.body, "definitions")
	maps.DeleteFunc(theirs.body.(object), func(name string, _ any) bool { return nested[any](ours.body, name) == nil })
	p.judge(t, r, ours, theirs)
}

// openAPI compares what a document of OpenAPI says of the paths and schemas that ours has.
func (p *pair) openAPI(t *testing.T, path string) {
	t.Helper()
	r := request{method: http.MethodGet, path: "/openapi/v3/" + path}
	ours, theirs := p.exchange(t, r)
	for _, part := range [][]string{{"paths"}, {"components", "schemas"}} {
		mine := nested[object](ours.body, part...)
		maps.DeleteFunc(nested[object](theirs.body, part...), func(name string, _ any) bool { return mine[name] == nil })
	}
	p.judge(t, r, ours, theirs)
}

// shape compares the names of the fields alone.
func (p *pair) shape(t *testing.T, path string) {
	t.Helper()
	r := request{method: http.MethodGet, path: path}
	ours, theirs := p.exchange(t, r)
	for _, a := range []*answer{&ours, &theirs} {
		for name := range nested[map[string]any](a.body) {
			a.body.(map[string]any)[name] = "(any)"
		}
	}
	p.judge(t, r, ours, theirs)
}

// lists says whether discovery of a version has a resource.
func lists(plural string) func(answer) bool {
	return func(a answer) bool {
		return slices.ContainsFunc(nested[[]any](a.body, "resources"), func(r any) bool { return nested[string](r, "name") == plural })
	}
}

func text(v any) string {
	data, _ := json.Marshal(v)
	return strings.TrimSpace(string(data))
}
