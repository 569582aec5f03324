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

// What both say that they serve. What only kube-apiserver serves yet is left out of its answers.
func testDiscovery(t *testing.T, p *pair) {
	for _, path := range []string{"/api", "/apis"} {
		p.common(t, request{method: http.MethodGet, path: path})
		p.common(t, request{method: http.MethodGet, path: path, accept: asAggregated})
	}
	p.common(t, request{method: http.MethodGet, path: "/api/v1/"})
	p.common(t, request{method: http.MethodGet, path: "/apis/"})
	p.send(t, request{method: http.MethodGet, path: "/apis/apps", accept: asGroup})
	ours, _ := p.exchange(t, request{method: http.MethodGet, path: "/apis"})
	p.common(t, request{method: http.MethodGet, path: "/api/v1"})
	for _, g := range nested[[]any](ours.body, "groups") {
		p.common(t, request{method: http.MethodGet, path: "/apis/" + nested[string](g, "name")})
		for _, v := range nested[[]any](g, "versions") {
			p.common(t, request{method: http.MethodGet, path: "/apis/" + nested[string](v, "groupVersion")})
		}
	}
	p.common(t, request{method: http.MethodGet, path: "/openapi/v3"})
	ours, _ = p.exchange(t, request{method: http.MethodGet, path: "/openapi/v3"})
	for _, path := range slices.Sorted(maps.Keys(nested[object](ours.body, "paths"))) {
		p.document(t, path)
	}
	p.paths(t, "/openapi/v2")
	p.shape(t, "/version")
}

// common compares what both answers tell of: groups, versions, resources, paths and definitions.
func (p *pair) common(t *testing.T, r request) {
	t.Helper()
	ours, theirs := p.exchange(t, r)
	for _, list := range []string{"groups", "resources", "items"} {
		keepCommon(ours.body, theirs.body, list)
	}
	names, all := nested[map[string]any](ours.body, "paths"), nested[map[string]any](theirs.body, "paths")
	maps.DeleteFunc(all, func(name string, _ any) bool { return names[name] == nil })
	p.judge(t, r, ours, theirs)
}

// keepCommon takes out of a list what ours does not have, at each depth.
func keepCommon(ours, theirs any, list string) {
	mine, all := map[string]any{}, nested[[]any](theirs, list)
	for _, item := range nested[[]any](ours, list) {
		mine[nameOf(item)] = item
	}
	all = slices.DeleteFunc(all, func(item any) bool { return mine[nameOf(item)] == nil })
	if of, _ := theirs.(object); len(all) > 0 {
		of[list] = all
	} else {
		delete(of, list)
	}
	for _, item := range all {
		for _, inner := range []string{"versions", "resources", "subresources"} {
			if nested[any](item, inner) != nil {
				keepCommon(mine[nameOf(item)], item, inner)
			}
		}
	}
}

func nameOf(item any) string {
	for _, path := range [][]string{{"name"}, {"metadata", "name"}, {"version"}, {"groupVersion"}, {"resource"}, {"subresource"}} {
		if n := nested[string](item, path...); n != "" {
			return n
		}
	}
	return ""
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

// document compares what OpenAPI says of the paths and schemas that ours has.
func (p *pair) document(t *testing.T, path string) {
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
