package conformance_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	// corpus is the folder of real CRDs and samples that stands beside a checkout.
	corpus  = "../../../shared/corpus"
	crdPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// crd is one that both have.
type crd struct {
	object
	group, plural, version string // the version is the one that is stored
}

func (c *crd) path() string { return crdPath + "/" + nested[string](c.object, "metadata", "name") }

func (c *crd) collection(namespace string) string {
	path := "/apis/" + c.group + "/" + c.version + "/"
	if nested[string](c.object, "spec", "scope") == "Namespaced" {
		path += "namespaces/" + namespace + "/"
	}
	return path + c.plural
}

func newCRD(t *testing.T, text []byte) *crd {
	t.Helper()
	c := &crd{}
	if err := yaml.Unmarshal(text, &c.object); err != nil {
		t.Fatal(err)
	}
	c.group, c.plural = nested[string](c.object, "spec", "group"), nested[string](c.object, "spec", "names", "plural")
	for _, v := range nested[[]any](c.object, "spec", "versions") {
		if nested[bool](v, "storage") {
			c.version = nested[string](v, "name")
		}
	}
	return c
}

// corpusCRDs are each tenth CRD of the corpus, or all of them, each name once.
func corpusCRDs(t *testing.T) (all []*crd) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(corpus, "crds", "*", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) == 0 {
		t.Logf("the corpus of real CRDs is not beside this checkout (%s)", corpus)
	}
	seen := map[string]bool{}
	for i, path := range paths {
		if name := filepath.Base(path); seen[name] || i%10 != 0 && os.Getenv("CONFORMANCE") != "all" {
			continue
		} else {
			seen[name] = true
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, newCRD(t, text))
	}
	return all
}

// CRD-001 CRD-016: CRDs are written, read, shown in discovery and OpenAPI, and refused alike.
func testCRDs(t *testing.T, p *pair) {
	p.installCRDs(t)
	for _, c := range p.crds {
		p.get(t, c.path())
		p.table(t, c.path())
		p.get(t, c.collection("conformance"))
		p.table(t, c.collection("conformance"))
	}
	for i, c := range p.crds {
		p.do(t, "PATCH "+c.path(), asMerge, `{"metadata":{"labels":{"patched":"yes"}}}`)
		if i%3 == 0 {
			p.updateCRD(t, c)
		}
	}
	seen := map[string]bool{}
	for _, c := range p.crds {
		for _, v := range nested[[]any](c.object, "spec", "versions") {
			if path := c.group + "/" + nested[string](v, "name"); !seen[path] && nested[bool](v, "served") {
				seen[path] = true
				p.published(t, path)
			}
		}
	}
	p.document(t, "/apis", asAggregated)
	p.do(t, "POST "+crdPath+"?dryRun=All", "", boundedByAllOf)
	p.do(t, "POST "+crdPath+"?dryRun=All", "", selectableReference)
	for i, c := range p.crds {
		if i%10 == 0 {
			for _, body := range c.spoilt() {
				p.do(t, "POST "+crdPath+"?dryRun=All&fieldValidation=Strict", "", body)
				p.do(t, "PATCH "+c.path()+"?dryRun=All&fieldManager=spoilt&force=true", asApply, body)
			}
		}
	}
}

// boundedByAllOf is a CRD that upstream refuses for the estimated cost of its rule.
const boundedByAllOf = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"bounded.example.com"},"spec":{"group":"example.com",
	"scope":"Namespaced","names":{"plural":"bounded","kind":"Bounded"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
	"spec":{"type":"array","maxItems":1000,"items":{"type":"string","allOf":[{"maxLength":63}]},"x-kubernetes-validations":[{"rule":"self.all(a, a.matches('^[a-z]*$'))"}]}}}}}]}}`

// selectableReference is a CRD whose validation panics in kube-apiserver, which aborts the request.
const selectableReference = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"references.example.com"},"spec":{"group":"example.com",
	"scope":"Namespaced","names":{"plural":"references","kind":"Reference"},"versions":[{"name":"v1","served":true,"storage":true,"selectableFields":[{"jsonPath":".spec.a"}],
	"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"a":{"type":"string"}}},"spoilt":{"$ref":"#/definitions/x"}}}}}]}}`

// refersBySelectableField reports whether r writes such a CRD.
func refersBySelectableField(r request) bool {
	return aboutCRD(r) && strings.Contains(r.body, `"$ref"`) && strings.Contains(r.body, `"selectableFields"`)
}

// installCRDs creates them all, and waits until kube-apiserver serves them.
func (p *pair) installCRDs(t *testing.T) {
	t.Helper()
	if p.crds != nil {
		return
	}
	p.crds = append(corpusCRDs(t), newCRD(t, []byte(widgets)))
	for i, c := range p.crds {
		if i%3 == 0 {
			p.do(t, "POST "+crdPath+"?dryRun=All", "", text(c.object))
		}
		p.do(t, "POST "+crdPath+"?fieldValidation=Warn", "", text(c.object))
	}
	for _, c := range p.crds {
		p.settle(t, c.path(), func(a answer) bool { return condition(a, "Established") == "True" })
		p.settle(t, "/apis/"+c.group+"/"+c.version, lists(c.plural))
		p.settle(t, c.collection("conformance"), served)
	}
}

// served: after each change of a CRD kube-apiserver answers 429 until it has set up its storage.
func served(a answer) bool { return a.code == http.StatusOK }

func condition(a answer, kind string) string {
	for _, c := range nested[[]any](a.body, "status", "conditions") {
		if nested[string](c, "type") == kind {
			return nested[string](c, "status")
		}
	}
	return ""
}

func (p *pair) updateCRD(t *testing.T, c *crd) {
	p.do(t, "PATCH "+c.path(), asJSONPatch, `[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/description","value":"changed"}]`)
	p.do(t, "PUT "+c.path(), "", changed(c.object, func(_, m object) { m["resourceVersion"] = "1" }))
	p.do(t, "PATCH "+c.path(), asJSONPatch, `[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/bad","value":{"type":"none"}}]`)
	p.do(t, "PATCH "+c.path(), asMerge, `{"spec":{"scope":"Everywhere","group":"other.example.com"}}`)
	p.do(t, "PATCH "+c.path()+"/status", asMerge, `{"metadata":{"annotations":{"status":"yes"}}}`)
	p.get(t, c.path()+"/status")
}

// published compares what discovery and OpenAPI tell of a group's version.
func (p *pair) published(t *testing.T, path string) {
	t.Helper()
	p.get(t, "/apis/"+path)
	p.settle(t, "/openapi/v3", func(a answer) bool { return nested[any](a.body, "paths", "apis/"+path) != nil })
	p.get(t, "/openapi/v3/apis/"+path)
}

// spoilt are ways to break a CRD.
func (c *crd) spoilt() []string {
	change := func(f func(spec, version object)) string {
		return changed(c.object, func(o, _ object) {
			spec := o["spec"].(object)
			f(spec, spec["versions"].([]any)[0].(object))
		})
	}
	property := func(p object) string {
		return change(func(_, v object) {
			root := v["schema"].(object)["openAPIV3Schema"].(object)
			properties, _ := root["properties"].(object)
			if properties == nil {
				properties = object{}
			}
			properties["spoilt"], root["properties"] = p, properties
		})
	}
	all := []string{
		changed(c.object, func(_, m object) { m["name"] = "other." + c.group }),
		change(func(_, v object) { delete(v, "schema") }),
		change(func(_, v object) { v["storage"] = false }),
		change(func(_, v object) { v["name"] = "Version 1" }),
		change(func(_, v object) { v["unknown"] = object{"field": 1} }),
		change(func(_, v object) {
			v["additionalPrinterColumns"] = []any{object{"name": "A", "type": "none", "jsonPath": "a["}}
		}),
		change(func(_, v object) {
			v["selectableFields"] = []any{object{"jsonPath": ".spec.none"}, object{"jsonPath": "x"}}
		}),
		change(func(_, v object) {
			v["subresources"] = object{"scale": object{"specReplicasPath": ".x", "statusReplicasPath": "y"}}
		}),
		change(func(spec, _ object) { spec["conversion"] = object{"strategy": "Webhook"} }),
		change(func(spec, _ object) { spec["conversion"] = object{"strategy": "Magic"} }),
		change(func(spec, _ object) { spec["versions"] = "wrong" }),
		change(func(spec, _ object) { spec["preserveUnknownFields"] = true }),
		change(func(spec, _ object) { spec["names"].(object)["shortNames"] = []any{"A B", ""} }),
		property(object{"type": "integer", "default": "x"}),
		property(object{"type": "string", "default": nil}),
		property(object{"type": "string", "pattern": "("}),
		property(object{"type": "array"}),
		property(object{"type": "array", "items": object{"type": "string"}, "x-kubernetes-list-type": "map"}),
		property(object{"type": "object", "properties": object{"a": object{}}, "additionalProperties": object{"type": "string"}}),
		property(object{"type": "object", "$ref": "#/x"}),
		property(object{"type": "string", "x-kubernetes-validations": []any{object{"rule": "self.size() >"}}}),
		property(object{"type": "string", "x-kubernetes-validations": []any{object{"rule": "self > 3", "message": "\n"}, object{"rule": ""}}}),
		property(object{"type": "string", "x-kubernetes-validations": []any{object{"rule": "self == oldSelf", "reason": "Bad", "fieldPath": ".x"}}}),
		property(object{"type": "array", "items": object{"type": "string", "x-kubernetes-validations": []any{object{"rule": "self.matches('a*')"}}}}),
		property(object{"type": "object", "x-kubernetes-int-or-string": true, "x-kubernetes-embedded-resource": true}),
		property(object{"type": "string", "nullable": true, "enum": []any{"a", "a"}, "minLength": -1, "format": "none"}),
	}
	for _, field := range []string{"group", "names", "scope", "versions"} {
		all = append(all, change(func(spec, _ object) { delete(spec, field) }))
	}
	for _, field := range []string{"kind", "plural"} {
		all = append(all, change(func(spec, _ object) { delete(spec["names"].(object), field) }))
	}
	return all
}

// testDeletion takes the CRDs away again, with what is left of their objects.
func testDeletion(t *testing.T, p *pair) {
	p.installCRDs(t)
	for _, c := range p.crds {
		p.settle(t, c.collection("conformance"), served) // or its loops fail, and wait ever longer
	}
	for _, c := range p.crds {
		p.do(t, "DELETE "+c.path(), "", "")
	}
	gone := func(a answer) bool { return a.code == http.StatusNotFound }
	for _, c := range slices.Backward(p.crds) {
		p.settle(t, c.path(), gone)
		p.get(t, c.path())
	}
	for _, c := range p.crds {
		p.settle(t, c.collection("conformance"), gone)
	}
}
