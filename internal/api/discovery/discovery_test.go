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

// cronTabs is an established CRD with two versions, of which the older is stored.
func cronTabs() *apiextensionsv1.CustomResourceDefinition {
	names := apiextensionsv1.CustomResourceDefinitionNames{Plural: "crontabs", Singular: "crontab", Kind: "CronTab", ListKind: "CronTabList",
		ShortNames: []string{"ct"}, Categories: []string{"all"}}
	version := func(name string, storage bool) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true, Storage: storage,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
				Scale: &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"}}}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "crontabs.stable.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: "stable.example.com", Names: names, Scope: apiextensionsv1.NamespaceScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1beta1", true), version("v1", false)}},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{AcceptedNames: names,
			Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}},
	}
}

// addresses are those of a server that Services' clients find in another way.
var addresses = Addresses{Default: "192.0.2.1:6443", Range: netip.MustParsePrefix("10.0.0.0/24"), InRange: "10.0.0.1:443"}

// cluster is a server that announces the kinds of a world.
type cluster struct{ *fixture.Served }

func newCluster(t testing.TB) *cluster {
	t.Helper()
	w := fixture.Open(t, kinds.Config{})
	return &cluster{w.Serve(Handler(w.Live, nil, addresses))}
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

// CRD-049; HPX-007: with a slash at its end a path has the same document.
func TestPlainDocuments(t *testing.T) {
	c := newCluster(t)
	c.Put(cronTabs())
	for path, want := range map[string]string{
		"/api":                          `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"192.0.2.1:6443"}]}` + "\n",
		"/apis":                         `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"apiregistration.k8s.io",`,
		"/api/v1":                       `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"bindings","singularName":"binding","namespaced":true,"kind":"Binding","verbs":["create"]},{"name":"componentstatuses","singularName":"componentstatus","namespaced":false,"kind":"ComponentStatus","verbs":["get","list"],"shortNames":["cs"]},{"name":"configmaps","singularName":"configmap","namespaced":true,"kind":"ConfigMap","verbs":["create","delete","deletecollection","get","list","patch","update","watch"],"shortNames":["cm"],"storageVersionHash":"qFsyl6wFWjQ="}`,
		"/apis/authorization.k8s.io/v1": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"authorization.k8s.io/v1","resources":[{"name":"localsubjectaccessreviews","singularName":"localsubjectaccessreview","namespaced":true,"kind":"LocalSubjectAccessReview","verbs":["create"]},`,
		"/apis/stable.example.com": `{"kind":"APIGroup","apiVersion":"v1","name":"stable.example.com","versions":[{"groupVersion":"stable.example.com/v1","version":"v1"},{"groupVersion":"stable.example.com/v1beta1","version":"v1beta1"}],` +
			`"preferredVersion":{"groupVersion":"stable.example.com/v1","version":"v1"}}` + "\n",
		"/apis/stable.example.com/v1": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"stable.example.com/v1","resources":[` +
			`{"name":"crontabs","singularName":"crontab","namespaced":true,"kind":"CronTab","verbs":["delete","deletecollection","get","list","patch","create","update","watch"],"shortNames":["ct"],"categories":["all"],"storageVersionHash":"` +
			upstream.StorageVersionHash("stable.example.com", "v1beta1", "CronTab") + `"},` +
			`{"name":"crontabs/status","singularName":"","namespaced":true,"kind":"CronTab","verbs":["get","patch","update"]},` +
			`{"name":"crontabs/scale","singularName":"","namespaced":true,"group":"autoscaling","version":"v1","kind":"Scale","verbs":["get","patch","update"]}]}` + "\n",
	} {
		resp, body := c.Get(path, "Accept", "application/json")
		if !strings.HasPrefix(body, want) || resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s\n%s\nwant\n%s", path, resp.StatusCode, resp.Header.Get("Content-Type"), body, want)
		}
		if _, slash := c.Get(path+"/", "Accept", "application/json"); slash != body {
			t.Errorf("%s/ is another document", path)
		}
		if _, y := c.Get(path, "Accept", "application/yaml"); !strings.Contains("\n"+y, "\nkind: ") {
			t.Errorf("%s: no YAML: %s", path, y)
		}
		if _, pretty := c.Get(path + "?pretty=1"); !strings.HasPrefix(pretty, "{\n  \"kind\": ") || !strings.HasSuffix(pretty, "\n}\n") {
			t.Errorf("%s: not pretty: %s", path, pretty)
		}
		checkProtobufEnvelope(t, c, path)
	}
}

// HPX-004: where the server is does not depend on how one has come, as through a proxy; HPX-007: nor on a slash at the end.
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
				t.Errorf("%s with %s: %v %s", path, header, err, body)
			}
		}
	}
}

// checkProtobufEnvelope checks the envelope; what is in it, client-go reads in the tests below.
func checkProtobufEnvelope(t *testing.T, c *cluster, path string) {
	t.Helper()
	resp, body := c.Get(path, "Accept", "application/vnd.kubernetes.protobuf")
	var unknown runtime.Unknown
	if resp.Header.Get("Content-Type") != "application/vnd.kubernetes.protobuf" || !strings.HasPrefix(body, "k8s\x00") {
		t.Fatalf("%s: no protobuf: %q", path, body)
	}
	if err := unknown.Unmarshal([]byte(body[4:])); err != nil || unknown.Kind == "" {
		t.Fatalf("%s: %v %q", path, err, unknown.Kind)
	}
}

// CRD-029, HPX-011
func TestUnservedPaths(t *testing.T) {
	c := newCluster(t)
	for _, path := range []string{"/apis/nope.example.com", "/apis/nope.example.com/v1", "/apis/events.k8s.io/v9", "/api/v2", "/api/v1/x", "/apis//v1", "/apis/x/v1/y"} {
		if resp, body := c.Get(path); resp.StatusCode != 404 || !strings.Contains(body, "\"message\": \"the server could not find the requested resource\"") {
			t.Errorf("%s: %d %q", path, resp.StatusCode, body)
		}
	}
	if resp, body := c.Get("/apis", "Accept", "text/html"); resp.StatusCode != 406 || !strings.Contains(body, "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	resp, err := http.Post(c.URL+"/apis", "application/json", nil)
	if err != nil || resp.StatusCode != 405 {
		t.Errorf("POST: %v %v", resp, err)
	}
	_ = resp.Body.Close()
}

// CRD-050
func TestAggregated(t *testing.T) {
	c := newCluster(t)
	former, before := c.Get("/apis", "Accept", aggregated)
	if strings.Contains(before, "crontabs") {
		t.Fatal("crontabs are there before their CRD")
	}
	c.Put(cronTabs())
	resp, body := c.Get("/apis", "Accept", aggregated, "If-None-Match", former.Header.Get("ETag"))
	if resp.StatusCode != 200 {
		t.Fatalf("a client that knows the kinds of before is told %d", resp.StatusCode)
	}
	etag := resp.Header.Get("ETag")
	if resp.Header.Get("Content-Type") != aggregated || resp.Header.Get("Vary") != "Accept" || resp.Header.Get("Cache-Control") != "public" || etag == "" {
		t.Errorf("headers: %v", resp.Header)
	}
	for _, want := range []string{`"apiVersion":"apidiscovery.k8s.io/v2"`, `"freshness":"Current"`,
		`{"resource":"crontabs","responseKind":{"group":"stable.example.com","version":"v1","kind":"CronTab"},"scope":"Namespaced","singularResource":"crontab"`,
		`{"subresource":"scale","responseKind":{"group":"autoscaling","version":"v1","kind":"Scale"},"verbs":["get","patch","update"]}`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
	if again, empty := c.Get("/apis", "Accept", aggregated, "If-None-Match", etag); again.StatusCode != 304 || empty != "" {
		t.Errorf("%d %q", again.StatusCode, empty)
	}
	if beta, text := c.Get("/apis", "Accept", aggregatedBeta); beta.StatusCode != http.StatusNotAcceptable { // removed in 1.37
		t.Errorf("v2beta1: %d %s", beta.StatusCode, text)
	}
	if beta, _ := c.Get("/apis", "Accept", aggregatedBeta+",application/json"); beta.Header.Get("Content-Type") != "application/json" {
		t.Errorf("v2beta1, or else JSON: %v", beta.Header)
	}
	_, core := c.Get("/api", "Accept", aggregated+",application/json;q=0.9")
	for _, want := range []string{ // of the resource's own version the kind alone is told
		`{"resource":"bindings","responseKind":{"group":"","version":"","kind":"Binding"},"scope":"Namespaced","singularResource":"binding","verbs":["create"]}`,
		`{"resource":"configmaps","responseKind":{"group":"","version":"","kind":"ConfigMap"},"scope":"Namespaced"`,
		`{"subresource":"eviction","responseKind":{"group":"policy","version":"v1","kind":"Eviction"},"verbs":["create"]}`,
		`{"subresource":"status","responseKind":{"group":"","version":"","kind":"Pod"},"verbs":["get","patch","update"]}`} {
		if !strings.Contains(core, want) {
			t.Errorf("no %s in %s", want, core)
		}
	}
	if strings.Contains(core, "crontabs") {
		t.Errorf("/api: %s", core)
	}
}

// CRD-050
func TestAggregatedProtobufIsTheSame(t *testing.T) {
	c := newCluster(t)
	c.Put(cronTabs())
	var fromJSON, fromProto apidiscoveryv2.APIGroupDiscoveryList
	_, text := c.Get("/apis", "Accept", aggregated)
	if err := json.Unmarshal([]byte(text), &fromJSON); err != nil {
		t.Fatal(err)
	}
	_, body := c.Get("/apis", "Accept", strings.Replace(aggregated, "application/json", "application/vnd.kubernetes.protobuf", 1))
	var unknown runtime.Unknown
	if err := unknown.Unmarshal([]byte(body[4:])); err != nil {
		t.Fatal(err)
	}
	if err := fromProto.Unmarshal(unknown.Raw); err != nil {
		t.Fatal(err)
	}
	fromProto.TypeMeta = metav1.TypeMeta{Kind: unknown.Kind, APIVersion: unknown.APIVersion}
	if !apiequality.Semantic.DeepEqual(fromJSON, fromProto) {
		t.Fatalf("%v\n%v", fromJSON, fromProto)
	}
}

// CRD-016, CRD-017, CRD-022, CRD-050
func TestClientsSeeChanges(t *testing.T) {
	c := newCluster(t)
	c.Put(cronTabs())
	shortcuts := func() (schema.GroupVersionResource, error) {
		cached := memory.NewMemCacheClient(c.client())
		mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)
		for _, name := range []string{"ct", "crontab", "crontabs"} {
			if got, err := mapper.ResourceFor(schema.GroupVersionResource{Resource: name}); err != nil || got.Resource != "crontabs" {
				return got, err
			}
		}
		return mapper.ResourceFor(schema.GroupVersionResource{Resource: "crontabs"})
	}
	if got, err := shortcuts(); err != nil || got.Version != "v1" {
		t.Fatalf("%v %v", got, err)
	}
	plain := c.client()
	plain.UseLegacyDiscovery = true
	groups, lists, err := plain.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	newGroups, newLists, err := c.client().ServerGroupsAndResources()
	if err != nil || len(groups) != len(newGroups) || len(lists) != len(newLists) {
		t.Fatalf("%v: %d and %d groups, %d and %d lists", err, len(groups), len(newGroups), len(lists), len(newLists))
	}
	for i := range groups {
		if groups[i].Name != newGroups[i].Name {
			t.Errorf("the orders differ: %s and %s", groups[i].Name, newGroups[i].Name)
		}
	}
	terminating := cronTabs()
	terminating.Status.Conditions = append(terminating.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue})
	c.Put(terminating)
	if _, body := c.Get("/apis/stable.example.com/v1"); !strings.Contains(body, `"verbs":["delete","deletecollection","get","list","watch"]`) {
		t.Errorf("a kind that goes away is announced as writable: %s", body)
	}
	c.Remove("crontabs.stable.example.com")
	if got, err := shortcuts(); err == nil {
		t.Errorf("crontabs are still there: %v", got)
	}
	if resp, _ := c.Get("/apis/stable.example.com"); resp.StatusCode != 404 {
		t.Errorf("the group is still there: %d", resp.StatusCode)
	}
}

// newClusterWithCRDs are n CRDs, each of a group of its own, in a Live.
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

// plainForm is aggregated discovery in one encoding.
func plainForm(t testing.TB, mediaType string) form {
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		t.Fatal(mediaType)
	}
	return form{info.Serializer, mediaType, false}
}

// A document of more than 128 KiB is compressed for clients that accept it (CRD-050).
func TestLargeDocumentsAreCompressed(t *testing.T) {
	c := newClusterWithCRDs(t, 200)
	_, plain := c.Get("/apis", "Accept", aggregated, "Accept-Encoding", "identity")
	resp, body := c.Get("/apis", "Accept", aggregated, "Accept-Encoding", "gzip")
	z, err := gzip.NewReader(strings.NewReader(body))
	if err != nil || resp.Header.Get("Content-Encoding") != "gzip" || !slices.Contains(resp.Header.Values("Vary"), "Accept-Encoding") {
		t.Fatalf("%v: %v", resp.Header, err)
	}
	if text, err := io.ReadAll(z); err != nil || string(text) != plain || len(plain) <= gzipped.Threshold {
		t.Errorf("%d bytes %v, want %d", len(text), err, len(plain))
	}
	if resp, _ := c.Get("/api", "Accept", aggregated, "Accept-Encoding", "gzip"); resp.Header.Get("Content-Encoding") != "" {
		t.Errorf("a small document: %v", resp.Header)
	}
}

// CRD-049, CRD-050: only what changed is made anew, and the whole is what it would be if all were.
func TestUnchangedGroupsAreReused(t *testing.T) {
	c := newClusterWithCRDs(t, 20)
	one := newDocuments(c.Catalog(), nil, nil)
	if _, err := one.etags[false](); err != nil {
		t.Fatal(err)
	}
	gone, changed := "g7.example.com", "g8.example.com"
	c.Remove("crontabs." + gone)
	crd := cronTabs()
	crd.Spec.Group, crd.Name, crd.Spec.Versions = changed, "crontabs."+changed, crd.Spec.Versions[:1]
	c.Remove(crd.Name)
	c.Put(crd)
	catalog := c.Catalog()
	two, fresh := newDocuments(catalog, one, nil), newDocuments(catalog, nil, nil)
	for g := range two.groups.All() {
		if name := g.source.Name; (one.groups.Find(name) == g) != (name != changed) {
			t.Errorf("group %q: kept %v", name, name == changed)
		}
	}
	if two.groups.Find(gone) != nil {
		t.Errorf("%s is still there", gone)
	}
	for _, f := range []form{plainForm(t, runtime.ContentTypeJSON), plainForm(t, runtime.ContentTypeProtobuf), plainForm(t, runtime.ContentTypeYAML)} {
		got, err := two.aggregated(f, false)
		want, wantErr := fresh.aggregated(f, false)
		if err != nil || wantErr != nil || !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("%v: %v %v\n%s\nnot\n%s", f, err, wantErr, got, want)
		}
	}
	etag, err := two.etags[false]()
	want, wantErr := fresh.etags[false]()
	former, formerErr := one.etags[false]()
	if err != nil || wantErr != nil || formerErr != nil || etag != want || etag == former {
		t.Errorf("%s %s %s", etag, want, former)
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

// BenchmarkChangedCRD is what discovery does after one change of a CRD, when there are n of groups of their own.
func BenchmarkChangedCRD(b *testing.B) {
	for _, n := range []int{10, 5000} {
		c := newClusterWithCRDs(b, n)
		whole := c.Catalog()
		c.Remove("crontabs.g5.example.com")
		less := c.Catalog()
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
				last := newDocuments(less, nil, nil)
				if err := step(last); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					d := newDocuments(whole, last, nil)
					d.groups.Find("g5.example.com").resourceList("v1")
					if err := step(d); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
