package openapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	explainv2 "k8s.io/kubectl/pkg/explain/v2"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// fakeDocuments holds the v2 documents of aggregated API servers, by the names of their APIServices.
type fakeDocuments map[string]string

func (fakeDocuments) ServeOpenAPIV3(w http.ResponseWriter, _ *http.Request, s *catalog.APIService) {
	_, _ = w.Write([]byte("document of " + s.Name))
}
func (d fakeDocuments) OpenAPIV3Hash(_ context.Context, s *catalog.APIService) string {
	if d[s.Name] == "" {
		return ""
	}
	return "HASH"
}
func (d fakeDocuments) OpenAPIV2(_ context.Context, s *catalog.APIService) ([]byte, string) {
	return []byte(d[s.Name]), d[s.Name]
}

// aggregatedDocument returns a document of OpenAPI v2 with a path of the group, a path of Trellis, and a definition
// named Shared.
func aggregatedDocument(group, shared string) string {
	return `{"swagger":"2.0","paths":{"/apis/` + group + `/v1/things":{"get":{"operationId":"list` + group +
		`","responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/Shared"}}}}},` +
		`"/apis/apps/v1/deployments":{}},"definitions":{"Shared":` + shared + `}}`
}

// TestAggregatedDocuments checks that the v2 and v3 documents contain the paths that aggregated API servers publish
// for their own group versions. Paths of other groups are dropped. An invalid document of one server does not
// affect the others. If definitions of the same name differ, the document contains all of them (OAS-022, AGG-059).
func TestAggregatedDocuments(t *testing.T) {
	c := newCluster(t, cronTab)
	docs := fakeDocuments{
		"v1.a.example.com": aggregatedDocument("a.example.com", `{"type":"object","description":"of a"}`),
		"v1.b.example.com": aggregatedDocument("b.example.com", `{"type":"object","description":"of b"}`),
		"v1.c.example.com": `{"swagger":"2.0","paths":`,
		"v1.d.example.com": "",
		// Upstream's code panics when it merges the next two documents.
		"v1.e.example.com": aggregatedDocument("e.example.com", `{"type":"string"}`),
		"v1.f.example.com": aggregatedDocument("f.example.com",
			`{"type":"string","x-kubernetes-group-version-kind":[{"group":"a","kind":"b","version":"c"}]}`),
	}
	for name := range docs {
		group := strings.TrimPrefix(name, "v1.")
		c.PutAPIService(object.Tree{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": object.Tree{"name": name},
			"spec": object.Tree{"group": group, "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 15,
				"service": object.Tree{"namespace": "n", "name": "s"}},
		})
	}
	handler := Handler(c.Live, docs)
	get := func(path, accept string) string {
		t.Helper()
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
		return w.Body.String()
	}
	var all struct {
		Paths       map[string]map[string]any
		Definitions map[string]struct{ Description string }
	}
	if err := json.Unmarshal([]byte(get("/openapi/v2", "application/json")), &all); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		"/apis/a.example.com/v1/things": true, "/apis/b.example.com/v1/things": true,
		"/apis/c.example.com/v1/things": false,
		"/apis/d.example.com/v1/things": false, "/apis/e.example.com/v1/things": true,
		"/apis/stable.example.com/v1/crontabs": true,
	} {
		if _, ok := all.Paths[path]; ok != want {
			t.Errorf("path %s: got %t, want %t", path, ok, want)
		}
	}
	if len(all.Paths["/apis/apps/v1/namespaces/{namespace}/deployments"]) == 0 {
		t.Error("the document of an aggregated API server has replaced a local path")
	}
	described := map[string]bool{}
	for name, d := range all.Definitions {
		if strings.HasPrefix(name, "Shared") {
			described[d.Description] = true
		}
	}
	if !described["of a"] || !described["of b"] {
		t.Errorf("got definitions named Shared with the descriptions %v, want those of a and b", described)
	}
	encoded := get("/openapi/v2", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
	if !strings.Contains(encoded, "/apis/a.example.com/v1/things") {
		t.Error("the protobuf does not have the path /apis/a.example.com/v1/things")
	}
	index := get("/openapi/v3", "application/json")
	const entry = `"apis/a.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/a.example.com/v1?hash=HASH"}`
	if !strings.Contains(index, entry) ||
		strings.Contains(index, "d.example.com") || !strings.Contains(index, `"apis/stable.example.com/v1":`) {
		t.Errorf("got index %.500s", index)
	}
	if body := get("/openapi/v3/apis/a.example.com/v1", "application/json"); body != "document of v1.a.example.com" {
		t.Errorf("got %s, want the document of v1.a.example.com", body)
	}
}

// v2OnlyDocuments holds the documents of aggregated API servers that do not support OpenAPI v3.
type v2OnlyDocuments struct{ fakeDocuments }

func (v2OnlyDocuments) OpenAPIV3Hash(context.Context, *catalog.APIService) string { return "" }

// TestAggregatedV2Only checks that the document of an aggregated API server without v3 is converted to v3, and that
// kubectl explain reads it (OAS-022).
func TestAggregatedV2Only(t *testing.T) {
	c := newCluster(t, cronTab)
	const kind = `"x-kubernetes-group-version-kind":{"group":"a.example.com","kind":"Thing","version":"v1"}`
	document := aggregatedDocument("a.example.com",
		`{"type":"object","description":"of a","properties":{"size":{"type":"integer","description":"how large"}},
			"x-kubernetes-group-version-kind":[{"group":"a.example.com","kind":"Thing","version":"v1"}]}`)
	docs := fakeDocuments{
		"v1.a.example.com": strings.Replace(document, `"responses"`,
			`"x-kubernetes-action":"list",`+kind+`,"responses"`, 1),
		"v1.c.example.com": `{"swagger":"2.0","paths":`,
		"v1.d.example.com": "",
	}
	for name := range docs {
		c.PutAPIService(object.Tree{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": object.Tree{"name": name},
			"spec": object.Tree{"group": strings.TrimPrefix(name, "v1."), "version": "v1", "groupPriorityMinimum": 1000,
				"versionPriority": 15, "service": object.Tree{"namespace": "n", "name": "s"}},
		})
	}
	server := httptest.NewServer(Handler(c.Live, v2OnlyDocuments{docs}))
	defer server.Close()
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	paths, err := client.OpenAPIV3().Paths()
	if err != nil || paths["apis/a.example.com/v1"] == nil || paths["apis/d.example.com/v1"] != nil ||
		paths["apis/stable.example.com/v1"] == nil {
		t.Fatalf("got paths %v, error %v, want a.example.com and stable.example.com without d.example.com", paths, err)
	}
	var out bytes.Buffer
	things := schema.GroupVersionResource{Group: "a.example.com", Version: "v1", Resource: "things"}
	err = explainv2.PrintModelDescription([]string{"size"}, &out, client.OpenAPIV3(), things, false, 0, "plaintext")
	if err != nil || !strings.Contains(out.String(), "how large") {
		t.Errorf("explain: got error %v, output %s, want the description", err, out.String())
	}
	text, err := paths["apis/a.example.com/v1"].Schema("application/com.github.proto-openapi.spec.v3@v1.0+protobuf")
	if err != nil || !bytes.Contains(text, []byte("how large")) || bytes.Contains(text, []byte("/apis/apps/v1")) {
		t.Errorf("protobuf: got error %v, text %.300s, want the description and no path of apps/v1", err, text)
	}
	if text, err := paths["apis/c.example.com/v1"].Schema("application/json"); err == nil {
		t.Errorf("invalid document: got %s, want an error", text)
	}
}
