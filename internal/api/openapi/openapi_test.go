package openapi

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi3"
	"k8s.io/client-go/rest"
	"k8s.io/kubectl/pkg/explain"
	explainv2 "k8s.io/kubectl/pkg/explain/v2"
	kubectlopenapi "k8s.io/kubectl/pkg/util/openapi"
	"k8s.io/kubectl/pkg/validation"

	"github.com/trellis-k8s/trellis/internal/fixture"
	"github.com/trellis-k8s/trellis/internal/kinds"
)

const cronTab = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: crontabs.stable.example.com}
spec:
  group: stable.example.com
  names: {plural: crontabs, singular: crontab, kind: CronTab, shortNames: [ct]}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    selectableFields: [{jsonPath: .spec.image}]
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
    schema:
      openAPIV3Schema:
        type: object
        description: CronTab runs things.
        properties:
          spec:
            type: object
            description: what to run
            required: [cronSpec, maybe]
            properties:
              cronSpec: {type: string, description: when to run, pattern: '^(\d+|\*)'}
              image: {type: string}
              replicas: {type: integer, minimum: 1, maximum: 10}
              maybe: {type: string, nullable: true}
              port: {x-kubernetes-int-or-string: true}
              raw: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}}}
              either: {type: object, properties: {a: {type: string}, b: {type: string}}, oneOf: [{required: [a]}, {required: [b]}]}
          status: {type: object, properties: {replicas: {type: integer}}}
`

// cluster is a server of the documents of a world.
type cluster struct{ *fixture.Served }

func newCluster(t testing.TB, manifests ...string) *cluster {
	t.Helper()
	w := fixture.Open(t, kinds.Config{})
	c := &cluster{w.Serve(Handler(w.Live, nil))}
	for _, m := range manifests {
		c.put(m)
	}
	return c
}

func (c *cluster) put(manifest string) {
	c.Helper()
	crd, _ := storedCRD(c, []byte(manifest))
	c.Put(crd)
}

func (c *cluster) client() *discovery.DiscoveryClient {
	c.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: c.URL})
	if err != nil {
		c.Fatal(err)
	}
	return d
}

// urls are the documents that the index of v3 names.
func (c *cluster) urls() map[string]string {
	c.Helper()
	_, body := c.Get("/openapi/v3")
	var index struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := json.Unmarshal([]byte(body), &index); err != nil {
		c.Fatalf("%v: %s", err, body)
	}
	out := map[string]string{}
	for name, p := range index.Paths {
		out[name] = p.ServerRelativeURL
	}
	return out
}

// OAS-015, OAS-016
func TestCaching(t *testing.T) {
	c := newCluster(t, cronTab)
	url := c.urls()["apis/stable.example.com/v1"]
	if !strings.HasPrefix(url, "/openapi/v3/apis/stable.example.com/v1?hash=") {
		t.Fatalf("url %q", url)
	}
	resp, _ := c.Get(url)
	if resp.StatusCode != 200 || resp.Header.Get("Cache-Control") != "public, immutable" || resp.Header.Get("Expires") == "" || resp.Header.Get("Vary") != "Accept" {
		t.Errorf("with the hash: %d %v", resp.StatusCode, resp.Header)
	}
	if resp, _ := c.Get("/openapi/v3/apis/stable.example.com/v1?hash=OLD"); resp.StatusCode != 301 || resp.Header.Get("Location") != url {
		t.Errorf("with another hash: %d %v", resp.StatusCode, resp.Header)
	}
	if resp, _ := c.Get("/openapi/v3/apis/stable.example.com/v1"); resp.StatusCode != 200 || resp.Header.Get("Cache-Control") != "" {
		t.Errorf("without a hash: %d %v", resp.StatusCode, resp.Header)
	}
	tags := map[string]string{}
	for _, path := range []string{"/openapi/v2", "/openapi/v3", url} {
		resp, _ := c.Get(path)
		etag := resp.Header.Get("Etag")
		if again, body := c.Get(path, "If-None-Match", etag); etag == "" || again.StatusCode != 304 || len(body) > 0 {
			t.Errorf("%s: %d with ETag %s", path, again.StatusCode, etag)
		}
		path, _, _ = strings.Cut(path, "?")
		tags[path] = etag
	}
	c.put(strings.Replace(cronTab, "when to run", "when it runs", 1))
	for path, old := range tags {
		if resp, body := c.Get(path, "If-None-Match", old); resp.StatusCode != 200 || resp.Header.Get("Etag") == old || path != "/openapi/v3" && !strings.Contains(body, "when it runs") {
			t.Errorf("%s: %d, ETag %s as before a change", path, resp.StatusCode, resp.Header.Get("Etag"))
		}
	}
	if now := c.urls()["apis/stable.example.com/v1"]; now == url {
		t.Errorf("after a change the URL is still %s", now)
	}
	for _, path := range []string{"/openapi/v3/apis/nope/v1", "/openapi/v4", "/openapi/v3/apis/stable.example.com"} {
		if resp, _ := c.Get(path); resp.StatusCode != 404 {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
	if resp, _ := c.Get("/openapi/v2", "Accept", "text/html"); resp.StatusCode != 406 {
		t.Errorf("text/html: %d", resp.StatusCode)
	}
	for accept, want := range map[string]string{
		"application/com.github.proto-openapi.spec.v2@v1.0+protobuf": "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
		"application/com.github.proto-openapi.spec.v2.v1.0+protobuf": "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
		"*/*": "application/json",
	} {
		if resp, _ := c.Get("/openapi/v2", "Accept", accept); resp.Header.Get("Content-Type") != want {
			t.Errorf("%s: %s", accept, resp.Header.Get("Content-Type"))
		}
	}
}

// The document of v2 is compressed for clients that accept it, as kube-apiserver's is, and is the same document. Those of v3 and parts of
// documents are not compressed.
func TestV2IsCompressed(t *testing.T) {
	c := newCluster(t, cronTab)
	unpack := func(body string) string {
		z, err := gzip.NewReader(strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, accept := range []string{"application/json", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"} {
		plain, text := c.Get("/openapi/v2", "Accept", accept, "Accept-Encoding", "identity")
		if plain.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s: %v", accept, plain.Header)
		}
		for _, encoding := range []string{"gzip", "deflate, gzip;q=0.5", "GZIP"} {
			resp, body := c.Get("/openapi/v2", "Accept", accept, "Accept-Encoding", encoding)
			h := resp.Header
			if h.Get("Content-Encoding") != "gzip" || !slices.Contains(h.Values("Vary"), "Accept-Encoding") || h.Get("Etag") != plain.Header.Get("Etag") {
				t.Fatalf("%s, %s: %v", accept, encoding, h)
			}
			if unpack(body) != text || len(body) > len(text)/5 {
				t.Errorf("%s, %s: %d bytes, and %d without compression", accept, encoding, len(body), len(text))
			}
		}
	}
	c.put(strings.ReplaceAll(cronTab, "CronTab runs things.", "CronTab runs other things."))
	if _, body := c.Get("/openapi/v2", "Accept-Encoding", "gzip"); !strings.Contains(unpack(body), "CronTab runs other things.") {
		t.Error("the compressed document is out of date")
	}
	for _, request := range [][]string{
		{"/openapi/v2", "Accept-Encoding", "gzip;q=0"}, {"/openapi/v2", "Accept-Encoding", "br"}, {"/openapi/v2", "Accept-Encoding", "gzip", "Range", "bytes=0-9"},
		{"/openapi/v3/apis/stable.example.com/v1", "Accept-Encoding", "gzip"},
	} {
		if resp, _ := c.Get(request[0], request[1:]...); resp.Header.Get("Content-Encoding") != "" {
			t.Errorf("%v: %v", request, resp.Header)
		}
	}
}

// OAS-021
func TestDocumentsAreUpdated(t *testing.T) {
	c := newCluster(t)
	core := c.urls()["api/v1"]
	if core == "" || c.urls()["apis/stable.example.com/v1"] != "" {
		t.Fatalf("%v", c.urls())
	}
	c.put(cronTab)
	first := c.urls()["apis/stable.example.com/v1"]
	if _, body := c.Get("/openapi/v2"); !strings.Contains(body, "createStableExampleComV1NamespacedCronTab") || !strings.Contains(body, "listStableExampleComV1CronTabForAllNamespaces") {
		t.Error("v2 does not know the new kind")
	}
	c.put(strings.Replace(cronTab, "when to run", "at what time", 1))
	second := c.urls()["apis/stable.example.com/v1"]
	if first == "" || first == second || c.urls()["api/v1"] != core {
		t.Errorf("hashes: %s, then %s; %s, then %s", first, second, core, c.urls()["api/v1"])
	}
	if _, body := c.Get(second); !strings.Contains(body, "at what time") {
		t.Error("v3 has the old text")
	}
	c.put(strings.Replace(cronTab, "served: true", "served: false", 1))
	if url := c.urls()["apis/stable.example.com/v1"]; url != "" {
		t.Errorf("a version that is not served is published: %s", url)
	}
	c.Remove("crontabs.stable.example.com")
	if _, body := c.Get("/openapi/v2"); strings.Contains(body, "CronTab") {
		t.Error("v2 knows a kind that is gone")
	}
}

// OAS-007
func TestExplain(t *testing.T) {
	c := newCluster(t, cronTab)
	cronTabs := schema.GroupVersionResource{Group: "stable.example.com", Version: "v1", Resource: "crontabs"}
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	for _, test := range []struct {
		gvr  schema.GroupVersionResource
		path []string
		want []string
	}{
		{cronTabs, nil, []string{"KIND:       CronTab", "VERSION:    v1", "CronTab runs things.", "spec\t<Object>", "metadata\t<ObjectMeta>"}},
		{cronTabs, []string{"spec"}, []string{"what to run", "cronSpec\t<string> -required-", "when to run", "replicas\t<integer>"}},
		{cronTabs, []string{"metadata", "labels"}, []string{"<map[string]string>"}},
		{namespaces, []string{"spec"}, []string{"finalizers\t<[]string>"}},
		{namespaces, []string{"status", "conditions"}, []string{"lastTransitionTime\t<string>", "-required-"}},
	} {
		var out bytes.Buffer
		if err := explainv2.PrintModelDescription(test.path, &out, c.client().OpenAPIV3(), test.gvr, false, 0, "plaintext"); err != nil {
			t.Fatal(err)
		}
		for _, w := range test.want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("explain %s %v: no %q in\n%s", test.gvr.Resource, test.path, w, out.String())
			}
		}
	}
	var out bytes.Buffer
	err := explainv2.PrintModelDescription(nil, &out, c.client().OpenAPIV3(), cronTabs, true, 0, "plaintext")
	if err != nil || !strings.Contains(out.String(), "cronSpec") {
		t.Errorf("--recursive: %v\n%s", err, out.String())
	}
}

func (c *cluster) v2Models() kubectlopenapi.Resources {
	c.Helper()
	doc, err := c.client().OpenAPISchema() // asks for protobuf
	if err != nil {
		c.Fatal(err)
	}
	models, err := kubectlopenapi.NewOpenAPIData(doc)
	if err != nil {
		c.Fatal(err)
	}
	return models
}

// OAS-004, OAS-007: kubectl explain reads v2, the only document of the oldest clients, and finds the same kind in v3.
func TestExplainFromV2(t *testing.T) {
	c := newCluster(t, cronTab)
	model := c.v2Models().LookupResource(schema.GroupVersionKind{Group: "stable.example.com", Version: "v1", Kind: "CronTab"})
	if model == nil {
		t.Fatal("v2 has no CronTab")
	}
	var out bytes.Buffer
	if err := explain.PrintModelDescription([]string{"spec"}, &out, model, schema.GroupVersionKind{Group: "stable.example.com", Version: "v1", Kind: "CronTab"}, false, 0); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "cronSpec\t<string> -required-") || !strings.Contains(out.String(), "maybe\t<>") {
		t.Error(out.String())
	}
	var v3 bytes.Buffer
	crontabs := schema.GroupVersionResource{Group: "stable.example.com", Version: "v1", Resource: "crontabs"}
	if err := explainv2.PrintModelDescription([]string{"spec"}, &v3, c.client().OpenAPIV3(), crontabs, false, 0, "plaintext"); err != nil || !strings.Contains(v3.String(), "cronSpec\t<string> -required-") {
		t.Errorf("v3: %v\n%s", err, v3.String())
	}
}

type parsedModels struct{ kubectlopenapi.Resources }

func (p parsedModels) OpenAPISchema() (kubectlopenapi.Resources, error) { return p.Resources, nil }

// OAS-006, OAS-010, OAS-011, OAS-014
func TestValidationByKubectl(t *testing.T) {
	c := newCluster(t, cronTab)
	v := validation.NewSchemaValidation(parsedModels{c.v2Models()})
	for spec, want := range map[string]string{
		`{"cronSpec":"* *"}`:                              "",
		`{"cronSpec":"* *","raw":{"any":1},"maybe":null}`: "",
		`{"cronSpec":"* *","port":"http"}`:                "",
		`{"cronSpec":"* *","someRandomField":1}`:          `unknown field "someRandomField" in com.example.stable.v1.CronTab.spec`,
		`{"cronSpec":"* *","replicas":"x"}`:               `invalid type for com.example.stable.v1.CronTab.spec.replicas: got "string", expected "integer"`,
		`{"image":"x"}`:                                   `missing required field "cronSpec" in com.example.stable.v1.CronTab.spec`,
	} {
		err := v.ValidateBytes([]byte(`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a"},"spec":` + spec + `}`))
		if fmt.Sprint(err) == "<nil>" && want == "" || err != nil && want != "" && strings.Contains(err.Error(), want) {
			continue
		}
		t.Errorf("%s: %v, not %q", spec, err, want)
	}
	if err := v.ValidateBytes([]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"a":{}}}`)); err == nil {
		t.Error("a ConfigMap of objects is fine for kubectl")
	}
}

// OAS-020
func TestServerSideValidationIsAnnounced(t *testing.T) {
	c := newCluster(t, cronTab)
	for _, gvk := range []schema.GroupVersionKind{{Group: "stable.example.com", Version: "v1", Kind: "CronTab"}, {Version: "v1", Kind: "ConfigMap"}} {
		root := openapi3.NewRoot(c.client().OpenAPIV3())
		for _, param := range []resource.VerifiableQueryParam{resource.QueryParamFieldValidation, "dryRun"} {
			if err := resource.NewQueryParamVerifierV3(nil, c.client().OpenAPIV3(), param).HasSupport(gvk); err != nil {
				t.Errorf("%s of %s: %v", param, gvk, err)
			}
		}
		if _, err := root.GVSpec(gvk.GroupVersion()); err != nil {
			t.Errorf("%s: %v", gvk, err)
		}
	}
}

// OAS-005: only a CRD that preserves unknown fields can have a schema that is not structural.
func TestNonStructuralSchemas(t *testing.T) {
	const preserving = "  preserveUnknownFields: true\n  scope:"
	for name, manifest := range map[string]string{
		"a type below anyOf":  strings.Replace(cronTab, "oneOf: [{required: [a]}", "oneOf: [{type: object, required: [a]}", 1),
		"a field of no type":  strings.Replace(cronTab, "image: {type: string}", "image: {description: x}", 1),
		"metadata restricted": strings.Replace(cronTab, "          status: {", "          metadata: {type: object, properties: {labels: {type: object}}}\n          status: {", 1),
		"undeclared":          strings.Replace(cronTab, "          status: {type: object", "          other: {type: object, x-kubernetes-embedded-resource: true}\n          status: {type: object", 1),
		"an embedded resource of no type": strings.Replace(cronTab, "          status: {type: object",
			"          other: {x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}\n          status: {type: object", 1),
		"structural": cronTab,
	} {
		for _, preserves := range []bool{false, true} {
			if accepted := name == "structural" || name == "an embedded resource of no type"; !preserves && !accepted {
				continue
			}
			if preserves {
				manifest = strings.Replace(manifest, "  scope:", preserving, 1)
			}
			crd, d := readCRD(t, []byte(manifest))
			compareWithUpstream(t, crd, d.Versions[0])
			for _, e := range []edition{v2, v3} {
				has := strings.Contains(fmt.Sprint(trellisDocument(t, e, d.Versions[0])), "when to run")
				if has != (name == "structural" && (e == v3 || !preserves)) {
					t.Errorf("%s, of a CRD that preserves unknown fields: %v: published with its schema in v%d: %v", name, preserves, e, has)
				}
			}
		}
	}
}
