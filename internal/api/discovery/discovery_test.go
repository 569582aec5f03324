package discovery

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/trellis-k8s/trellis/internal/api/gzipped"
	"github.com/trellis-k8s/trellis/internal/fixture"
	"github.com/trellis-k8s/trellis/internal/kinds"
)

// cronTabs returns an established CRD with two versions. The older one is the storage version.
func cronTabs() *apiextensionsv1.CustomResourceDefinition {
	names := apiextensionsv1.CustomResourceDefinitionNames{Plural: "crontabs", Singular: "crontab", Kind: "CronTab",
		ListKind:   "CronTabList",
		ShortNames: []string{"ct"}, Categories: []string{"all"}}
	version := func(name string, storage bool) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true, Storage: storage,
			Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"},
			},
			Subresources: &apiextensionsv1.CustomResourceSubresources{
				Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
				Scale: &apiextensionsv1.CustomResourceSubresourceScale{
					SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas",
				},
			},
		}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "crontabs.stable.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: "stable.example.com", Names: names,
			Scope: apiextensionsv1.NamespaceScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1beta1", true),
				version("v1", false)}},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{AcceptedNames: names,
			Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established,
				Status: apiextensionsv1.ConditionTrue}}},
	}
}

// addresses are the addresses of a server. Clients in the range of Services use a separate address.
var addresses = Addresses{Default: "192.0.2.1:6443", Range: netip.MustParsePrefix("10.0.0.0/24"),
	InRange: "10.0.0.1:443"}

// cluster is a server with the discovery documents of a fixture.
type cluster struct{ *fixture.Served }

func newCluster(t testing.TB) *cluster {
	t.Helper()
	env := fixture.Open(t, kinds.Config{})
	return &cluster{env.Serve(Handler(env.Live, nil, addresses))}
}

func (c *cluster) client() *discovery.DiscoveryClient {
	c.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: c.URL})
	if err != nil {
		c.Fatal(err)
	}
	return d
}

const (
	aggregated     = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	aggregatedBeta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
)

// TestPlainDocuments checks the documents of discovery without aggregation (CRD-049). A path with a slash at its end
// has the same document (HPX-007).
func TestPlainDocuments(t *testing.T) {
	c := newCluster(t)
	c.Put(cronTabs())
	for path, want := range map[string]string{
		"/api": `{"kind":"APIVersions","versions":["v1"],` +
			`"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"192.0.2.1:6443"}]}` + "\n",
		"/apis": `{"kind":"APIGroupList","apiVersion":"v1",` +
			`"groups":[{"name":"apiregistration.k8s.io",`,
		"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1",` +
			`"resources":[{"name":"bindings","singularName":"binding","namespaced":true,"kind":"Binding",` +
			`"verbs":["create"]},{"name":"componentstatuses","singularName":"componentstatus","namespaced":false,` +
			`"kind":"ComponentStatus","verbs":["get","list"],"shortNames":["cs"]},{"name":"configmaps",` +
			`"singularName":"configmap","namespaced":true,"kind":"ConfigMap","verbs":["create","delete",` +
			`"deletecollection","get","list","patch","update","watch"],"shortNames":["cm"],` +
			`"storageVersionHash":"qFsyl6wFWjQ="}`,
		"/apis/authorization.k8s.io/v1": `{"kind":"APIResourceList","apiVersion":"v1",` +
			`"groupVersion":"authorization.k8s.io/v1","resources":[{"name":"localsubjectaccessreviews",` +
			`"singularName":"localsubjectaccessreview","namespaced":true,"kind":"LocalSubjectAccessReview",` +
			`"verbs":["create"]},`,
		"/apis/stable.example.com": `{"kind":"APIGroup","apiVersion":"v1","name":"stable.example.com",` +
			`"versions":[{"groupVersion":"stable.example.com/v1","version":"v1"},` +
			`{"groupVersion":"stable.example.com/v1beta1","version":"v1beta1"}],` +
			`"preferredVersion":{"groupVersion":"stable.example.com/v1","version":"v1"}}` + "\n",
		"/apis/stable.example.com/v1": `{"kind":"APIResourceList","apiVersion":"v1",` +
			`"groupVersion":"stable.example.com/v1","resources":[` +
			`{"name":"crontabs","singularName":"crontab","namespaced":true,"kind":"CronTab","verbs":["delete",` +
			`"deletecollection","get","list","patch","create","update","watch"],"shortNames":["ct"],` +
			`"categories":["all"],"storageVersionHash":"` +
			upstream.StorageVersionHash("stable.example.com", "v1beta1", "CronTab") + `"},` +
			`{"name":"crontabs/status","singularName":"","namespaced":true,"kind":"CronTab","verbs":["get","patch",` +
			`"update"]},` +
			`{"name":"crontabs/scale","singularName":"","namespaced":true,"group":"autoscaling","version":"v1",` +
			`"kind":"Scale","verbs":["get","patch","update"]}]}` + "\n",
	} {
		resp, body := c.Get(path, "Accept", "application/json")
		if !strings.HasPrefix(body, want) || resp.StatusCode != 200 ||
			resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: got %d %s\n%s\nwant 200 application/json\n%s", path, resp.StatusCode,
				resp.Header.Get("Content-Type"), body, want)
		}
		if _, slash := c.Get(path+"/", "Accept", "application/json"); slash != body {
			t.Errorf("%s/: got %s, want the document of %s", path, slash, path)
		}
		if _, y := c.Get(path, "Accept", "application/yaml"); !strings.Contains("\n"+y, "\nkind: ") {
			t.Errorf("%s: got %s, want YAML", path, y)
		}
		if _, pretty := c.Get(path + "?pretty=1"); !strings.HasPrefix(pretty, "{\n  \"kind\": ") ||
			!strings.HasSuffix(pretty, "\n}\n") {
			t.Errorf("%s: got %s, want indented JSON", path, pretty)
		}
		checkProtobufEnvelope(t, c, path)
	}
}

// TestServerAddress checks that the published address of the server depends on the client's address, but not on the
// Host header (HPX-004). The address is the same for a path with a slash at its end (HPX-007).
func TestServerAddress(t *testing.T) {
	c := newCluster(t)
	const all = `"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"192.0.2.1:6443"}`
	for header, want := range map[string]string{
		"Host: localhost:8080": all + "]}\n", "X-Forwarded-For: 192.0.2.7": all + "]}\n",
		"X-Forwarded-For: 10.0.0.7": all + `,{"clientCIDR":"10.0.0.0/24","serverAddress":"10.0.0.1:443"}]}` + "\n",
	} {
		for _, path := range []string{"/api", "/api/"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			name, value, _ := strings.Cut(header, ": ")
			r.Header.Set(name, value)
			if name == "Host" {
				r.Host = value
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || !strings.HasSuffix(string(body), want) {
				t.Errorf("%s with %s: got %s, error %v, want it to end with %s", path, header, body, err, want)
			}
		}
	}
}

// checkProtobufEnvelope checks the envelope of a document in protobuf. Other tests decode its content with client-go.
func checkProtobufEnvelope(t *testing.T, c *cluster, path string) {
	t.Helper()
	resp, body := c.Get(path, "Accept", "application/vnd.kubernetes.protobuf")
	var unknown runtime.Unknown
	if resp.Header.Get("Content-Type") != "application/vnd.kubernetes.protobuf" || !strings.HasPrefix(body, "k8s\x00") {
		t.Fatalf("%s: got %q, want protobuf", path, body)
	}
	if err := unknown.Unmarshal([]byte(body[4:])); err != nil || unknown.Kind == "" {
		t.Fatalf("%s: got kind %q, error %v, want a kind", path, unknown.Kind, err)
	}
}

// TestUnservedPaths checks that unknown groups and versions get 404. It also checks the errors for unsupported media
// types and methods (CRD-029, HPX-011).
func TestUnservedPaths(t *testing.T) {
	c := newCluster(t)
	for _, path := range []string{"/apis/nope.example.com", "/apis/nope.example.com/v1", "/apis/events.k8s.io/v9",
		"/api/v2", "/api/v1/x", "/apis//v1", "/apis/x/v1/y"} {
		if resp, body := c.Get(path); resp.StatusCode != 404 ||
			!strings.Contains(body, "\"message\": \"the server could not find the requested resource\"") {
			t.Errorf("%s: got %d %q, want 404", path, resp.StatusCode, body)
		}
	}
	if resp, body := c.Get("/apis", "Accept", "text/html"); resp.StatusCode != 406 ||
		!strings.Contains(body, "only the following media types are accepted: application/json, application/yaml, "+
			"application/vnd.kubernetes.protobuf") {
		t.Errorf("Accept text/html: got %d %s, want 406", resp.StatusCode, body)
	}
	resp, err := http.Post(c.URL+"/apis", "application/json", nil)
	if err != nil || resp.StatusCode != 405 {
		t.Errorf("POST: got %v, error %v, want 405", resp, err)
	}
	_ = resp.Body.Close()
}

// TestAggregated checks aggregated discovery, its caching headers and its ETag (CRD-050).
func TestAggregated(t *testing.T) {
	c := newCluster(t)
	former, before := c.Get("/apis", "Accept", aggregated)
	if strings.Contains(before, "crontabs") {
		t.Fatal("the document has crontabs before their CRD is created")
	}
	c.Put(cronTabs())
	resp, body := c.Get("/apis", "Accept", aggregated, "If-None-Match", former.Header.Get("ETag"))
	if resp.StatusCode != 200 {
		t.Fatalf("with the ETag from before the CRD: got %d, want 200", resp.StatusCode)
	}
	etag := resp.Header.Get("ETag")
	if resp.Header.Get("Content-Type") != aggregated || resp.Header.Get("Vary") != "Accept" ||
		resp.Header.Get("Cache-Control") != "public" || etag == "" {
		t.Errorf("got headers %v", resp.Header)
	}
	for _, want := range []string{`"apiVersion":"apidiscovery.k8s.io/v2"`, `"freshness":"Current"`,
		`{"resource":"crontabs","responseKind":{"group":"stable.example.com","version":"v1","kind":"CronTab"},` +
			`"scope":"Namespaced","singularResource":"crontab"`,
		`{"subresource":"scale","responseKind":{"group":"autoscaling","version":"v1","kind":"Scale"},"verbs":["get",` +
			`"patch","update"]}`} {
		if !strings.Contains(body, want) {
			t.Errorf("got %s, want it to contain %s", body, want)
		}
	}
	if again, empty := c.Get("/apis", "Accept", aggregated, "If-None-Match", etag); again.StatusCode != 304 ||
		empty != "" {
		t.Errorf("with the current ETag: got %d %q, want 304 without a body", again.StatusCode, empty)
	}
	// Kubernetes 1.37 removed v2beta1.
	if beta, text := c.Get("/apis", "Accept", aggregatedBeta); beta.StatusCode != http.StatusNotAcceptable {
		t.Errorf("v2beta1: got %d %s, want 406", beta.StatusCode, text)
	}
	beta, _ := c.Get("/apis", "Accept", aggregatedBeta+",application/json")
	if beta.Header.Get("Content-Type") != "application/json" {
		t.Errorf("v2beta1 or plain JSON: got headers %v, want plain JSON", beta.Header)
	}
	_, core := c.Get("/api", "Accept", aggregated+",application/json;q=0.9")
	// A responseKind omits the group and version if they equal those of the document.
	for _, want := range []string{
		`{"resource":"bindings","responseKind":{"group":"","version":"","kind":"Binding"},"scope":"Namespaced",` +
			`"singularResource":"binding","verbs":["create"]}`,
		`{"resource":"configmaps","responseKind":{"group":"","version":"","kind":"ConfigMap"},"scope":"Namespaced"`,
		`{"subresource":"eviction","responseKind":{"group":"policy","version":"v1","kind":"Eviction"},` +
			`"verbs":["create"]}`,
		`{"subresource":"status","responseKind":{"group":"","version":"","kind":"Pod"},"verbs":["get","patch",` +
			`"update"]}`} {
		if !strings.Contains(core, want) {
			t.Errorf("/api: got %s, want it to contain %s", core, want)
		}
	}
	if strings.Contains(core, "crontabs") {
		t.Errorf("/api: got %s, want no crontabs", core)
	}
}

// TestAggregatedProtobufIsTheSame checks that aggregated discovery in protobuf equals the JSON (CRD-050).
func TestAggregatedProtobufIsTheSame(t *testing.T) {
	c := newCluster(t)
	c.Put(cronTabs())
	var fromJSON, fromProto apidiscoveryv2.APIGroupDiscoveryList
	_, text := c.Get("/apis", "Accept", aggregated)
	if err := json.Unmarshal([]byte(text), &fromJSON); err != nil {
		t.Fatal(err)
	}
	_, body := c.Get("/apis", "Accept", strings.Replace(aggregated, "application/json",
		"application/vnd.kubernetes.protobuf", 1))
	var unknown runtime.Unknown
	if err := unknown.Unmarshal([]byte(body[4:])); err != nil {
		t.Fatal(err)
	}
	if err := fromProto.Unmarshal(unknown.Raw); err != nil {
		t.Fatal(err)
	}
	fromProto.TypeMeta = metav1.TypeMeta{Kind: unknown.Kind, APIVersion: unknown.APIVersion}
	if !apiequality.Semantic.DeepEqual(fromJSON, fromProto) {
		t.Fatalf("got protobuf\n%v\nwant as JSON\n%v", fromProto, fromJSON)
	}
}

// TestClientsSeeChanges checks that client-go finds a kind by its names, and sees when its CRD changes, terminates and
// is deleted (CRD-016, CRD-017, CRD-022, CRD-050).
func TestClientsSeeChanges(t *testing.T) {
	c := newCluster(t)
	c.Put(cronTabs())
	resolveNames := func() (schema.GroupVersionResource, error) {
		cached := memory.NewMemCacheClient(c.client())
		mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)
		for _, name := range []string{"ct", "crontab", "crontabs"} {
			if got, err := mapper.ResourceFor(schema.GroupVersionResource{Resource: name}); err != nil ||
				got.Resource != "crontabs" {
				return got, err
			}
		}
		return mapper.ResourceFor(schema.GroupVersionResource{Resource: "crontabs"})
	}
	if got, err := resolveNames(); err != nil || got.Version != "v1" {
		t.Fatalf("got %v, error %v, want version v1", got, err)
	}
	plain := c.client()
	plain.UseLegacyDiscovery = true
	groups, lists, err := plain.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	newGroups, newLists, err := c.client().ServerGroupsAndResources()
	if err != nil || len(groups) != len(newGroups) || len(lists) != len(newLists) {
		t.Fatalf("aggregated discovery: error %v, got %d groups and %d lists, want %d and %d",
			err, len(newGroups), len(newLists), len(groups), len(lists))
	}
	for i := range groups {
		if groups[i].Name != newGroups[i].Name {
			t.Errorf("group %d: got %s, want %s", i, newGroups[i].Name, groups[i].Name)
		}
	}
	terminating := cronTabs()
	terminating.Status.Conditions = append(terminating.Status.Conditions,
		apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.Terminating,
			Status: apiextensionsv1.ConditionTrue})
	c.Put(terminating)
	const readOnly = `"verbs":["delete","deletecollection","get","list","watch"]`
	if _, body := c.Get("/apis/stable.example.com/v1"); !strings.Contains(body, readOnly) {
		t.Errorf("terminating CRD: got %s, want %s", body, readOnly)
	}
	c.Remove("crontabs.stable.example.com")
	if got, err := resolveNames(); err == nil {
		t.Errorf("deleted CRD: got %v, want an error", got)
	}
	if resp, _ := c.Get("/apis/stable.example.com"); resp.StatusCode != 404 {
		t.Errorf("group of the deleted CRD: got %d, want 404", resp.StatusCode)
	}
}

// newClusterWithCRDs returns a cluster with n CRDs in different groups.
func newClusterWithCRDs(t testing.TB, n int) *cluster {
	c := newCluster(t)
	for i := range n {
		crd := cronTabs()
		crd.Spec.Group = fmt.Sprintf("g%d.example.com", i)
		crd.Name = "crontabs." + crd.Spec.Group
		c.Put(crd)
	}
	return c
}

// plainForm returns the form of aggregated discovery with the given media type and without indentation.
func plainForm(t testing.TB, mediaType string) form {
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		t.Fatalf("no serializer for %s", mediaType)
	}
	return form{info.Serializer, mediaType, false}
}

// TestLargeDocumentsAreCompressed checks that a document of more than 128 KiB is compressed for clients that accept
// gzip (CRD-050).
func TestLargeDocumentsAreCompressed(t *testing.T) {
	c := newClusterWithCRDs(t, 200)
	_, plain := c.Get("/apis", "Accept", aggregated, "Accept-Encoding", "identity")
	resp, body := c.Get("/apis", "Accept", aggregated, "Accept-Encoding", "gzip")
	z, err := gzip.NewReader(strings.NewReader(body))
	if err != nil || resp.Header.Get("Content-Encoding") != "gzip" ||
		!slices.Contains(resp.Header.Values("Vary"), "Accept-Encoding") {
		t.Fatalf("got headers %v, error %v, want gzip", resp.Header, err)
	}
	if text, err := io.ReadAll(z); err != nil || string(text) != plain || len(plain) <= gzipped.Threshold {
		t.Errorf("got %d bytes, error %v, want the %d bytes without compression", len(text), err, len(plain))
	}
	resp, _ = c.Get("/api", "Accept", aggregated, "Accept-Encoding", "gzip")
	if resp.Header.Get("Content-Encoding") != "" {
		t.Errorf("small document: got headers %v, want no Content-Encoding", resp.Header)
	}
}

// TestUnchangedGroupsAreReused checks that only changed groups are rendered again. The documents equal those of a full
// rendering (CRD-049, CRD-050).
func TestUnchangedGroupsAreReused(t *testing.T) {
	c := newClusterWithCRDs(t, 20)
	first := newDocuments(c.Catalog(), nil, nil)
	if _, err := first.etags[false](); err != nil {
		t.Fatal(err)
	}
	deleted, changed := "g7.example.com", "g8.example.com"
	c.Remove("crontabs." + deleted)
	crd := cronTabs()
	crd.Spec.Group, crd.Name, crd.Spec.Versions = changed, "crontabs."+changed, crd.Spec.Versions[:1]
	c.Remove(crd.Name)
	c.Put(crd)
	catalog := c.Catalog()
	second, fresh := newDocuments(catalog, first, nil), newDocuments(catalog, nil, nil)
	for g := range second.groups.All() {
		if name := g.source.Name; (first.groups.Find(name) == g) != (name != changed) {
			t.Errorf("group %q: got reused %v, want %v", name, name == changed, name != changed)
		}
	}
	if second.groups.Find(deleted) != nil {
		t.Errorf("the deleted group %s has a document", deleted)
	}
	for _, f := range []form{plainForm(t, runtime.ContentTypeJSON), plainForm(t, runtime.ContentTypeProtobuf),
		plainForm(t, runtime.ContentTypeYAML)} {
		got, err := second.aggregated(f, false)
		want, wantErr := fresh.aggregated(f, false)
		if err != nil || wantErr != nil || !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("%v: errors %v %v\n got %s\nwant %s", f, err, wantErr, got, want)
		}
	}
	etag, err := second.etags[false]()
	want, wantErr := fresh.etags[false]()
	former, formerErr := first.etags[false]()
	if err != nil || wantErr != nil || formerErr != nil || etag != want || etag == former {
		t.Errorf("got ETag %s, want %s, which differs from the former %s", etag, want, former)
	}
}

func BenchmarkAggregated(b *testing.B) {
	h := Handler(fixture.Open(b, kinds.Config{}).Live, nil, addresses)
	r := httptest.NewRequest(http.MethodGet, "/apis", nil)
	r.Header.Set("Accept", aggregated)
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
}

// BenchmarkChangedCRD measures the work of discovery after one CRD has changed, with n CRDs in different groups.
func BenchmarkChangedCRD(b *testing.B) {
	for _, n := range []int{10, 5000} {
		c := newClusterWithCRDs(b, n)
		complete := c.Catalog()
		c.Remove("crontabs.g5.example.com")
		reduced := c.Catalog()
		steps := map[string]func(*documents) error{
			"group": func(d *documents) error { return nil },
			"etag":  func(d *documents) error { _, err := d.etags[false](); return err },
			"aggregated": func(d *documents) error {
				parts, err := d.aggregated(plainForm(b, runtime.ContentTypeJSON), false)
				if err != nil {
					return err
				}
				return write(io.Discard, 64<<10, parts)
			},
		}
		for name, step := range steps {
			b.Run(fmt.Sprintf("%s/groups=%d", name, n), func(b *testing.B) {
				last := newDocuments(reduced, nil, nil)
				if err := step(last); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					d := newDocuments(complete, last, nil)
					d.groups.Find("g5.example.com").resourceList("v1")
					if err := step(d); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
