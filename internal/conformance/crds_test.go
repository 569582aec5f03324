package conformance_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
)

// corpus is the directory of real CRDs and samples, next to the checkout.
var corpus = outside.Path("corpus")

const crdPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// crd is a CustomResourceDefinition that is installed on both servers.
type crd struct {
	object
	group, plural, version string // version is the storage version
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

// corpusCRDs returns every tenth CRD of the corpus, or all CRDs if CONFORMANCE=all is set. If several files have
// the same name, it returns only the first.
func corpusCRDs(t *testing.T) (all []*crd) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(corpus, "crds", "*", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) == 0 {
		t.Logf("skipping real CRDs: no corpus at %s", corpus)
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

// testCRDs compares writes and reads of CRDs, their discovery and OpenAPI documents, and the rejection of invalid CRDs
// (CRD-001 CRD-016).
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
				p.comparePublished(t, path)
			}
		}
	}
	p.discoveryDocument(t, "/apis", asAggregated)
	p.do(t, "POST "+crdPath+"?dryRun=All", "", boundedByAllOf)
	p.do(t, "POST "+crdPath+"?dryRun=All", "", selectableReference)
	for i, c := range p.crds {
		if i%10 == 0 {
			for _, body := range c.invalidVariants() {
				p.do(t, "POST "+crdPath+"?dryRun=All&fieldValidation=Strict", "", body)
				p.do(t, "PATCH "+c.path()+"?dryRun=All&fieldManager=invalid&force=true", asApply, body)
			}
		}
	}
}

// boundedByAllOf is a CRD that upstream rejects because of its rule's estimated cost.
const boundedByAllOf = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"bounded.example.com"},"spec":{"group":"example.com",
	"scope":"Namespaced","names":{"plural":"bounded","kind":"Bounded"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
	"spec":{"type":"array","maxItems":1000,"items":{"type":"string","allOf":[{"maxLength":63}]},"x-kubernetes-validations":[{"rule":"self.all(a, a.matches('^[a-z]*$'))"}]}}}}}]}}`

// selectableReference is a CRD whose validation panics in kube-apiserver, which aborts the request.
const selectableReference = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"references.example.com"},"spec":{"group":"example.com",
	"scope":"Namespaced","names":{"plural":"references","kind":"Reference"},"versions":[{"name":"v1","served":true,"storage":true,"selectableFields":[{"jsonPath":".spec.a"}],
	"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"a":{"type":"string"}}},"invalid":{"$ref":"#/definitions/x"}}}}}]}}`

// combinesRefAndSelectable reports whether r writes a CRD with both $ref and selectable fields, like
// selectableReference.
func combinesRefAndSelectable(r request) bool {
	return isCRDRequest(r) && strings.Contains(r.body, `"$ref"`) && strings.Contains(r.body, `"selectableFields"`)
}

// installCRDs creates all CRDs on the first call and blocks until kube-apiserver serves them.
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
		p.waitFor(t, c.path(), func(a response) bool { return condition(a, "Established") == "True" })
		p.waitFor(t, "/apis/"+c.group+"/"+c.version, listsResource(c.plural))
		p.waitFor(t, c.collection("conformance"), isServed)
	}
}

// isServed reports whether the resource is ready: after each change of a CRD, kube-apiserver returns 429 until it has
// set up the storage.
func isServed(a response) bool { return a.code == http.StatusOK }

func condition(a response, kind string) string {
	for _, c := range nested[[]any](a.body, "status", "conditions") {
		if nested[string](c, "type") == kind {
			return nested[string](c, "status")
		}
	}
	return ""
}

func (p *pair) updateCRD(t *testing.T, c *crd) {
	p.do(t, "PATCH "+c.path(), asJSONPatch,
		`[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/description","value":"changed"}]`)
	p.do(t, "PUT "+c.path(), "", modified(c.object, func(_, m object) { m["resourceVersion"] = "1" }))
	p.do(t, "PATCH "+c.path(), asJSONPatch,
		`[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/bad","value":{"type":"none"}}]`)
	p.do(t, "PATCH "+c.path(), asMerge, `{"spec":{"scope":"Everywhere","group":"other.example.com"}}`)
	p.do(t, "PATCH "+c.path()+"/status", asMerge, `{"metadata":{"annotations":{"status":"yes"}}}`)
	p.get(t, c.path()+"/status")
}

// comparePublished compares the discovery and OpenAPI documents of a group version.
func (p *pair) comparePublished(t *testing.T, path string) {
	t.Helper()
	p.get(t, "/apis/"+path)
	p.waitFor(t, "/openapi/v3", func(a response) bool { return nested[any](a.body, "paths", "apis/"+path) != nil })
	p.get(t, "/openapi/v3/apis/"+path)
}

// invalidVariants returns invalid variants of a CRD.
func (c *crd) invalidVariants() []string {
	change := func(f func(spec, version object)) string {
		return modified(c.object, func(o, _ object) {
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
			properties["invalid"], root["properties"] = p, properties
		})
	}
	all := []string{
		modified(c.object, func(_, m object) { m["name"] = "other." + c.group }),
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
		property(object{"type": "object", "properties": object{"a": object{}},
			"additionalProperties": object{"type": "string"}}),
		property(object{"type": "object", "$ref": "#/x"}),
		property(object{"type": "string", "x-kubernetes-validations": []any{object{"rule": "self.size() >"}}}),
		property(object{"type": "string", "x-kubernetes-validations": []any{object{"rule": "self > 3", "message": "\n"},
			object{"rule": ""}}}),
		property(object{"type": "string",
			"x-kubernetes-validations": []any{object{"rule": "self == oldSelf", "reason": "Bad", "fieldPath": ".x"}}}),
		property(object{"type": "array", "items": object{"type": "string",
			"x-kubernetes-validations": []any{object{"rule": "self.matches('a*')"}}}}),
		property(object{"type": "object", "x-kubernetes-int-or-string": true, "x-kubernetes-embedded-resource": true}),
		property(object{"type": "string", "nullable": true, "enum": []any{"a", "a"}, "minLength": -1,
			"format": "none"}),
	}
	for _, field := range []string{"group", "names", "scope", "versions"} {
		all = append(all, change(func(spec, _ object) { delete(spec, field) }))
	}
	for _, field := range []string{"kind", "plural"} {
		all = append(all, change(func(spec, _ object) { delete(spec["names"].(object), field) }))
	}
	return all
}

// testDeletion compares the deletion of the CRDs and of their remaining objects.
func testDeletion(t *testing.T, p *pair) {
	p.installCRDs(t)
	for _, c := range p.crds {
		// If a resource is not served yet, kube-apiserver's finalizer fails and retries with growing delays.
		p.waitFor(t, c.collection("conformance"), isServed)
	}
	for _, c := range p.crds {
		p.do(t, "DELETE "+c.path(), "", "")
	}
	gone := func(a response) bool { return a.code == http.StatusNotFound }
	for _, c := range slices.Backward(p.crds) {
		p.waitFor(t, c.path(), gone)
		p.get(t, c.path())
	}
	for _, c := range p.crds {
		p.waitFor(t, c.collection("conformance"), gone)
	}
}
