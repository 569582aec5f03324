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
              either: {type: object, properties: {a: {type: string}, b: {type: string}},
                oneOf: [{required: [a]}, {required: [b]}]}
          status: {type: object, properties: {replicas: {type: integer}}}
`

// cluster is a server with the OpenAPI documents of a fixture.
type cluster struct{ *fixture.Served }

func newCluster(t testing.TB, manifests ...string) *cluster {
	t.Helper()
	env := fixture.Open(t, kinds.Config{})
	c := &cluster{env.Serve(Handler(env.Live, nil))}
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

// urls returns the URLs of the documents in the index of v3, by path.
func (c *cluster) urls() map[string]string {
	c.Helper()
	_, body := c.Get("/openapi/v3")
	var index struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := json.Unmarshal([]byte(body), &index); err != nil {
		c.Fatalf("cannot decode the index %s: %v", body, err)
	}
	out := map[string]string{}
	for name, p := range index.Paths {
		out[name] = p.ServerRelativeURL
	}
	return out
}

// TestCaching checks the hashes, ETags and caching headers of the documents, and their media types (OAS-015, OAS-016).
func TestCaching(t *testing.T) {
	c := newCluster(t, cronTab)
	url := c.urls()["apis/stable.example.com/v1"]
	if !strings.HasPrefix(url, "/openapi/v3/apis/stable.example.com/v1?hash=") {
		t.Fatalf("got URL %q, want one with a hash", url)
	}
	resp, _ := c.Get(url)
	if resp.StatusCode != 200 || resp.Header.Get("Cache-Control") != "public, immutable" ||
		resp.Header.Get("Expires") == "" || resp.Header.Get("Vary") != "Accept" {
		t.Errorf("with the hash: got %d %v, want 200 and an immutable document", resp.StatusCode, resp.Header)
	}
	if resp, _ := c.Get("/openapi/v3/apis/stable.example.com/v1?hash=OLD"); resp.StatusCode != 301 ||
		resp.Header.Get("Location") != url {
		t.Errorf("with another hash: got %d %v, want 301 to the current hash", resp.StatusCode, resp.Header)
	}
	if resp, _ := c.Get("/openapi/v3/apis/stable.example.com/v1"); resp.StatusCode != 200 ||
		resp.Header.Get("Cache-Control") != "" {
		t.Errorf("without a hash: got %d %v, want 200 without Cache-Control", resp.StatusCode, resp.Header)
	}
	tags := map[string]string{}
	for _, path := range []string{"/openapi/v2", "/openapi/v3", url} {
		resp, _ := c.Get(path)
		etag := resp.Header.Get("Etag")
		if again, body := c.Get(path, "If-None-Match", etag); etag == "" || again.StatusCode != 304 || len(body) > 0 {
			t.Errorf("%s: got %d with ETag %s, want 304 without a body", path, again.StatusCode, etag)
		}
		path, _, _ = strings.Cut(path, "?")
		tags[path] = etag
	}
	c.put(strings.Replace(cronTab, "when to run", "when it runs", 1))
	for path, old := range tags {
		if resp, body := c.Get(path, "If-None-Match", old); resp.StatusCode != 200 || resp.Header.Get("Etag") == old ||
			path != "/openapi/v3" && !strings.Contains(body, "when it runs") {
			t.Errorf("%s: got %d with ETag %s, want the changed document", path, resp.StatusCode,
				resp.Header.Get("Etag"))
		}
	}
	if changed := c.urls()["apis/stable.example.com/v1"]; changed == url {
		t.Errorf("got URL %s after a change, want another hash", changed)
	}
	for _, path := range []string{"/openapi/v3/apis/nope/v1", "/openapi/v4", "/openapi/v3/apis/stable.example.com"} {
		if resp, _ := c.Get(path); resp.StatusCode != 404 {
			t.Errorf("%s: got %d, want 404", path, resp.StatusCode)
		}
	}
	if resp, _ := c.Get("/openapi/v2", "Accept", "text/html"); resp.StatusCode != 406 {
		t.Errorf("Accept text/html: got %d, want 406", resp.StatusCode)
	}
	const protobuf = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
	for accept, want := range map[string]string{
		"application/com.github.proto-openapi.spec.v2@v1.0+protobuf": protobuf,
		protobuf: protobuf,
		"*/*":    "application/json",
	} {
		if resp, _ := c.Get("/openapi/v2", "Accept", accept); resp.Header.Get("Content-Type") != want {
			t.Errorf("Accept %s: got Content-Type %s, want %s", accept, resp.Header.Get("Content-Type"), want)
		}
	}
}

// TestV2IsCompressed checks that the v2 document is compressed for clients that accept gzip, like kube-apiserver's.
// Decompression returns the same document. Documents of v3 and ranges of documents are not compressed.
func TestV2IsCompressed(t *testing.T) {
	c := newCluster(t, cronTab)
	decompress := func(body string) string {
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
			t.Errorf("%s: got headers %v, want no Content-Encoding", accept, plain.Header)
		}
		for _, encoding := range []string{"gzip", "deflate, gzip;q=0.5", "GZIP"} {
			resp, body := c.Get("/openapi/v2", "Accept", accept, "Accept-Encoding", encoding)
			h := resp.Header
			if h.Get("Content-Encoding") != "gzip" || !slices.Contains(h.Values("Vary"), "Accept-Encoding") ||
				h.Get("Etag") != plain.Header.Get("Etag") {
				t.Fatalf("%s with %s: got headers %v, want gzip and the same ETag", accept, encoding, h)
			}
			if decompress(body) != text || len(body) > len(text)/5 {
				t.Errorf("%s with %s: got %d bytes, want at most a fifth of the document's %d", accept, encoding,
					len(body), len(text))
			}
		}
	}
	c.put(strings.ReplaceAll(cronTab, "CronTab runs things.", "CronTab runs other things."))
	_, changed := c.Get("/openapi/v2", "Accept-Encoding", "gzip")
	if !strings.Contains(decompress(changed), "CronTab runs other things.") {
		t.Error("the compressed document does not have the change")
	}
	for _, request := range [][]string{
		{"/openapi/v2", "Accept-Encoding", "gzip;q=0"}, {"/openapi/v2", "Accept-Encoding", "br"},
		{"/openapi/v2", "Accept-Encoding", "gzip", "Range", "bytes=0-9"},
		{"/openapi/v3/apis/stable.example.com/v1", "Accept-Encoding", "gzip"},
	} {
		if resp, _ := c.Get(request[0], request[1:]...); resp.Header.Get("Content-Encoding") != "" {
			t.Errorf("%v: got headers %v, want no Content-Encoding", request, resp.Header)
		}
	}
}

// TestDocumentsAreUpdated checks that the documents change when a CRD is created, changed, no longer served, or
// deleted (OAS-021).
func TestDocumentsAreUpdated(t *testing.T) {
	c := newCluster(t)
	core := c.urls()["api/v1"]
	if core == "" || c.urls()["apis/stable.example.com/v1"] != "" {
		t.Fatalf("got URLs %v, want those of built-in kinds", c.urls())
	}
	c.put(cronTab)
	first := c.urls()["apis/stable.example.com/v1"]
	if _, body := c.Get("/openapi/v2"); !strings.Contains(body, "createStableExampleComV1NamespacedCronTab") ||
		!strings.Contains(body, "listStableExampleComV1CronTabForAllNamespaces") {
		t.Error("v2 does not have the new kind")
	}
	c.put(strings.Replace(cronTab, "when to run", "at what time", 1))
	second := c.urls()["apis/stable.example.com/v1"]
	if first == "" || first == second || c.urls()["api/v1"] != core {
		t.Errorf("got hashes %s then %s, want a change; core %s then %s, want no change",
			first, second, core, c.urls()["api/v1"])
	}
	if _, body := c.Get(second); !strings.Contains(body, "at what time") {
		t.Error("v3 does not have the changed description")
	}
	c.put(strings.Replace(cronTab, "served: true", "served: false", 1))
	if url := c.urls()["apis/stable.example.com/v1"]; url != "" {
		t.Errorf("got URL %s for a version that is not served, want none", url)
	}
	c.Remove("crontabs.stable.example.com")
	if _, body := c.Get("/openapi/v2"); strings.Contains(body, "CronTab") {
		t.Error("v2 has the deleted kind")
	}
}

// TestExplain checks the output of kubectl explain, which reads v3 (OAS-007).
func TestExplain(t *testing.T) {
	c := newCluster(t, cronTab)
	cronTabs := schema.GroupVersionResource{Group: "stable.example.com", Version: "v1", Resource: "crontabs"}
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	for _, test := range []struct {
		gvr  schema.GroupVersionResource
		path []string
		want []string
	}{
		{cronTabs, nil, []string{"KIND:       CronTab", "VERSION:    v1", "CronTab runs things.", "spec\t<Object>",
			"metadata\t<ObjectMeta>"}},
		{cronTabs, []string{"spec"}, []string{"what to run", "cronSpec\t<string> -required-", "when to run",
			"replicas\t<integer>"}},
		{cronTabs, []string{"metadata", "labels"}, []string{"<map[string]string>"}},
		{namespaces, []string{"spec"}, []string{"finalizers\t<[]string>"}},
		{namespaces, []string{"status", "conditions"}, []string{"lastTransitionTime\t<string>", "-required-"}},
	} {
		var out bytes.Buffer
		models := c.client().OpenAPIV3()
		err := explainv2.PrintModelDescription(test.path, &out, models, test.gvr, false, 0, "plaintext")
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range test.want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("explain %s %v: got\n%s\nwant it to contain %q", test.gvr.Resource, test.path, out.String(), w)
			}
		}
	}
	var out bytes.Buffer
	err := explainv2.PrintModelDescription(nil, &out, c.client().OpenAPIV3(), cronTabs, true, 0, "plaintext")
	if err != nil || !strings.Contains(out.String(), "cronSpec") {
		t.Errorf("explain --recursive: got error %v\n%s\nwant cronSpec", err, out.String())
	}
}

// v2Models returns the models of v2 as kubectl parses them.
func (c *cluster) v2Models() kubectlopenapi.Resources {
	c.Helper()
	doc, err := c.client().OpenAPISchema() // requests protobuf
	if err != nil {
		c.Fatal(err)
	}
	models, err := kubectlopenapi.NewOpenAPIData(doc)
	if err != nil {
		c.Fatal(err)
	}
	return models
}

// TestExplainFromV2 checks that kubectl explain works with v2, the only document that the oldest clients read. It finds
// the same kind in v3 (OAS-004, OAS-007).
func TestExplainFromV2(t *testing.T) {
	c := newCluster(t, cronTab)
	gvk := schema.GroupVersionKind{Group: "stable.example.com", Version: "v1", Kind: "CronTab"}
	model := c.v2Models().LookupResource(gvk)
	if model == nil {
		t.Fatal("v2 has no CronTab")
	}
	var out bytes.Buffer
	if err := explain.PrintModelDescription([]string{"spec"}, &out, model, gvk, false, 0); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "cronSpec\t<string> -required-") ||
		!strings.Contains(out.String(), "maybe\t<>") {
		t.Errorf("v2: got %s", out.String())
	}
	var v3 bytes.Buffer
	crontabs := schema.GroupVersionResource{Group: "stable.example.com", Version: "v1", Resource: "crontabs"}
	models := c.client().OpenAPIV3()
	err := explainv2.PrintModelDescription([]string{"spec"}, &v3, models, crontabs, false, 0, "plaintext")
	if err != nil || !strings.Contains(v3.String(), "cronSpec\t<string> -required-") {
		t.Errorf("v3: got error %v\n%s", err, v3.String())
	}
}

// parsedModels implements kubectl's interface of a source of models.
type parsedModels struct{ kubectlopenapi.Resources }

func (p parsedModels) OpenAPISchema() (kubectlopenapi.Resources, error) { return p.Resources, nil }

// TestValidationByKubectl checks that kubectl validates manifests with the models of v2 (OAS-006, OAS-010, OAS-011,
// OAS-014).
func TestValidationByKubectl(t *testing.T) {
	c := newCluster(t, cronTab)
	v := validation.NewSchemaValidation(parsedModels{c.v2Models()})
	for spec, want := range map[string]string{
		`{"cronSpec":"* *"}`:                              "",
		`{"cronSpec":"* *","raw":{"any":1},"maybe":null}`: "",
		`{"cronSpec":"* *","port":"http"}`:                "",
		`{"cronSpec":"* *","someRandomField":1}`: `unknown field "someRandomField" in ` +
			`com.example.stable.v1.CronTab.spec`,
		`{"cronSpec":"* *","replicas":"x"}`: `invalid type for ` +
			`com.example.stable.v1.CronTab.spec.replicas: got "string", expected "integer"`,
		`{"image":"x"}`: `missing required field "cronSpec" in ` +
			`com.example.stable.v1.CronTab.spec`,
	} {
		err := v.ValidateBytes([]byte(`{"apiVersion":"stable.example.com/v1","kind":"CronTab",` +
			`"metadata":{"name":"a"},"spec":` + spec + `}`))
		if fmt.Sprint(err) == "<nil>" && want == "" || err != nil && want != "" && strings.Contains(err.Error(), want) {
			continue
		}
		t.Errorf("%s: got error %v, want %q", spec, err, want)
	}
	invalid := []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"a":{}}}`)
	if err := v.ValidateBytes(invalid); err == nil {
		t.Error("kubectl accepts a ConfigMap whose data are objects")
	}
}

// TestServerSideValidationIsAnnounced checks that the documents have the query parameters fieldValidation and dryRun,
// which kubectl looks for (OAS-020).
func TestServerSideValidationIsAnnounced(t *testing.T) {
	c := newCluster(t, cronTab)
	for _, gvk := range []schema.GroupVersionKind{{Group: "stable.example.com", Version: "v1", Kind: "CronTab"},
		{Version: "v1", Kind: "ConfigMap"}} {
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

// TestNonStructuralSchemas checks which schemas are published. Only a CRD that preserves unknown fields can have a
// schema that is not structural (OAS-005).
func TestNonStructuralSchemas(t *testing.T) {
	const preserving = "  preserveUnknownFields: true\n  scope:"
	for name, manifest := range map[string]string{
		"type below oneOf": strings.Replace(cronTab, "oneOf: [{required: [a]}",
			"oneOf: [{type: object, required: [a]}", 1),
		"field without a type": strings.Replace(cronTab, "image: {type: string}", "image: {description: x}", 1),
		"metadata restricted": strings.Replace(cronTab, "          status: {",
			"          metadata: {type: object, properties: {labels: {type: object}}}\n          status: {", 1),
		"undeclared": strings.Replace(cronTab, "          status: {type: object",
			"          other: {type: object, x-kubernetes-embedded-resource: true}\n          status: {type: object",
			1),
		"embedded resource without a type": strings.Replace(cronTab, "          status: {type: object",
			"          other: {x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}\n"+
				"          status: {type: object", 1),
		"structural": cronTab,
	} {
		for _, preserves := range []bool{false, true} {
			if accepted := name == "structural" || name == "embedded resource without a type"; !preserves && !accepted {
				continue
			}
			if preserves {
				manifest = strings.Replace(manifest, "  scope:", preserving, 1)
			}
			crd, d := readCRD(t, []byte(manifest))
			compareWithUpstream(t, crd, d.Versions[0])
			for _, e := range []edition{v2, v3} {
				published := strings.Contains(fmt.Sprint(trellisDocument(t, e, d.Versions[0])), "when to run")
				if published != (name == "structural" && (e == v3 || !preserves)) {
					t.Errorf("%s: got schema published in v%d: %v, want %v (preserveUnknownFields %v)",
						name, e, published, !published, preserves)
				}
			}
		}
	}
}
