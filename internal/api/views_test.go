package api

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/api/health"
	"github.com/trellis-k8s/trellis/internal/resource"
)

const asTable = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;" +
	"g=meta.k8s.io,application/json"

// TestTable checks the columns, the cells and the objects of Tables, and the parameter includeObject (CRD-064, PRN-003,
// PRN-014, PRN-017).
func TestTable(t *testing.T) {
	h := withCronTabs(t)
	h.want(201, "POST", crontabs, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"b"},`+
		`"spec":{}}`)
	for _, path := range []string{crontabs, "/apis/stable.example.com/v1/crontabs"} {
		got := tree(t, h.want(200, "GET", path, "", asTable).Body)
		if got["kind"] != "Table" || got["apiVersion"] != "meta.k8s.io/v1" ||
			at(got, "metadata", "resourceVersion") == nil {
			t.Errorf("got %v, want a Table with a resourceVersion", got)
		}
		var names []any
		for i := range 4 {
			names = append(names, at(got, "columnDefinitions", i, "name"), at(got, "columnDefinitions", i, "format"))
		}
		if want := []any{"Name", "name", "Spec", "", "Replicas", "", "Age", ""}; !reflect.DeepEqual(names, want) {
			t.Errorf("got columns %v, want %v", names, want)
		}
		if d := at(got, "columnDefinitions", 0, "description"); d != (metav1.ObjectMeta{}).SwaggerDoc()["name"] {
			t.Errorf("column Name: got description %v, want that of metadata.name", d)
		}
		const description = "Custom resource definition column (in JSONPath format): .spec.cronSpec"
		if d := at(got, "columnDefinitions", 1, "description"); d != description {
			t.Errorf("column Spec: got description %v, want its JSONPath", d)
		}
		a, b := at(got, "rows", 0, "cells").([]any), at(got, "rows", 1, "cells").([]any)
		if a[0] != "a" || a[1] != "* * * * */5" || a[2] != 3.0 || !strings.HasSuffix(a[3].(string), "s") {
			t.Errorf("row a: got cells %v", a)
		}
		if b[0] != "b" || b[1] != nil || b[2] != nil {
			t.Errorf("row b: got cells %v, want only the name", b)
		}
		if o := at(got, "rows", 0, "object"); at(o, "kind") != "PartialObjectMetadata" ||
			at(o, "metadata", "name") != "a" || at(o, "spec") != nil || at(o, "metadata", "resourceVersion") == nil {
			t.Errorf("row a: got object %v, want only the metadata of a", o)
		}
	}
	one := tree(t, h.want(200, "GET", crontabs+"/a?includeObject=Object", "", asTable).Body)
	if at(one, "rows", 0, "object", "kind") != "CronTab" || at(one, "rows", 1) != nil {
		t.Errorf("includeObject=Object: got %v, want one CronTab", one)
	}
	none := tree(t, h.want(200, "GET", crontabs+"/a?includeObject=None", "", asTable).Body)
	if at(none, "rows", 0, "object") != nil {
		t.Errorf("includeObject=None: got %v, want no object", none)
	}
	h.wantError(400, `Unable to convert to Table as requested: includeObject: Invalid value: "All": must be `+
		`'Metadata', 'Object', 'None', or empty`,
		"GET", crontabs+"?includeObject=All", "", asTable)
	beta := tree(t, h.want(200, "GET", crontabs, "", "Accept: application/json;as=Table;v=v1beta1;g=meta.k8s.io").Body)
	if beta["apiVersion"] != "meta.k8s.io/v1beta1" ||
		at(beta, "rows", 0, "object", "apiVersion") != "meta.k8s.io/v1beta1" {
		t.Errorf("v1beta1: got %v, want meta.k8s.io/v1beta1", beta)
	}
}

// TestPartialObjectMetadata checks objects and lists that are requested as PartialObjectMetadata (CRD-064).
func TestPartialObjectMetadata(t *testing.T) {
	h := withCronTabs(t)
	whole := tree(t, h.do("GET", crontabs+"/a", "").Body)
	got := tree(t, h.want(200, "GET", crontabs+"/a", "",
		"Accept: application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io").Body)
	want := map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
		"metadata": whole["metadata"]}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	list := tree(t, h.want(200, "GET", crontabs, "",
		"Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").Body)
	if list["kind"] != "PartialObjectMetadataList" || !reflect.DeepEqual(at(list, "items", 0), any(want)) {
		t.Errorf("got list %v, want one item %v", list, want)
	}
	h.want(406, "GET", crontabs, "", "Accept: application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
	h.want(406, "GET", crontabs+"/a", "", "Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
	w := h.want(200, "GET", crontabs, "",
		"Accept: application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
	var typed metav1.PartialObjectMetadataList
	if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(w.Body.Bytes(), nil, &typed); err != nil ||
		len(typed.Items) != 1 || typed.Items[0].Name != "a" {
		t.Errorf("protobuf: got %v, error %v, want one item a", typed, err)
	}
}

// TestProtobufOfBuiltinKinds checks requests and responses of a built-in kind in protobuf (CRD-068).
func TestProtobufOfBuiltinKinds(t *testing.T) {
	h := newHarness(t)
	in := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"k": "v"}}
	info, _ := scheme.Codecs.SupportedMediaTypes(), 0
	var body bytes.Buffer
	for _, i := range info {
		if i.MediaType == runtime.ContentTypeProtobuf {
			encoder := scheme.Codecs.EncoderForVersion(i.Serializer, corev1.SchemeGroupVersion)
			if err := encoder.Encode(in, &body); err != nil {
				t.Fatal(err)
			}
		}
	}
	w := h.want(201, "POST", "/api/v1/namespaces/default/configmaps", body.String(),
		"Content-Type: "+runtime.ContentTypeProtobuf, "Accept: "+runtime.ContentTypeProtobuf)
	out := &corev1.ConfigMap{}
	if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(w.Body.Bytes(), nil, out); err != nil ||
		out.Data["k"] != "v" || out.UID == "" {
		t.Errorf("got %v, error %v, want the data and a UID", out, err)
	}
	w = h.want(200, "GET", "/api/v1/configmaps", "", "Accept: "+runtime.ContentTypeProtobuf)
	list := &corev1.ConfigMapList{}
	if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(w.Body.Bytes(), nil, list); err != nil ||
		len(list.Items) != 1 || list.ResourceVersion == "" {
		t.Errorf("got %v, error %v, want one item and a resourceVersion", list, err)
	}
}

// TestCBORFeatureGate checks that CBOR is accepted and served only if it is enabled (CRD-068).
func TestCBORFeatureGate(t *testing.T) {
	h := withCronTabs(t, func(c *Config) { c.EnableCBOR = true })
	w := h.want(200, "GET", crontabs+"/a", "", "Accept: application/cbor")
	if !strings.HasPrefix(w.Body.String(), "\xd9\xd9\xf7") {
		t.Errorf("got %x, want the CBOR tag", w.Body)
	}
	got, err := fromCBOR(w)
	if err != nil || at(got, "spec", "replicas") != int64(3) {
		t.Errorf("got %v, error %v, want 3 replicas", got, err)
	}
	h.want(200, "PUT", crontabs+"/a", w.Body.String(), "Content-Type: application/cbor")
	if w := newHarness(t).do("POST", "/api/v1/namespaces", "x", "Content-Type: application/cbor"); w.Code != 415 {
		t.Errorf("disabled CBOR: got %d, want 415", w.Code)
	}
}

// TestGzip checks that large responses are compressed for clients that accept gzip, and small ones are not (CRD-068).
func TestGzip(t *testing.T) {
	h := withCronTabs(t)
	h.fill(400)
	plain := h.want(200, "GET", crontabs, "").Body.Bytes()
	for _, accept := range []string{runtime.ContentTypeJSON, runtime.ContentTypeYAML} {
		w := h.want(200, "GET", crontabs, "", "Accept-Encoding: deflate, gzip", "Accept: "+accept)
		if w.Header().Get("Content-Encoding") != "gzip" || w.Header().Get("Vary") != "Accept-Encoding" {
			t.Fatalf("got headers %v, want gzip and Vary: Accept-Encoding", w.Header())
		}
		z, err := gzip.NewReader(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(z); err != nil || accept == runtime.ContentTypeJSON && !bytes.Equal(got, plain) {
			t.Errorf("got %d bytes, error %v, want the %d bytes without compression", len(got), err, len(plain))
		}
	}
	if w := h.do("GET", crontabs+"/a", "", "Accept-Encoding: gzip"); w.Header().Get("Content-Encoding") != "" {
		t.Error("a small response is compressed")
	}
	list := tree(t, bytes.NewReader(plain))
	if len(list["items"].([]any)) != 401 {
		t.Errorf("got %d items, want 401", len(list["items"].([]any)))
	}
}

// TestPretty checks which requests get indented JSON (CRD-068).
func TestPretty(t *testing.T) {
	h := withCronTabs(t)
	for _, headers := range [][]string{{"User-Agent: curl/8"}, {"Accept: application/json;pretty=1"}} {
		w := h.want(200, "GET", crontabs+"/a", "", headers...)
		if !strings.HasPrefix(w.Body.String(), "{\n  \"apiVersion\": ") {
			t.Errorf("%s: got %s, want indented JSON", headers, w.Body)
		}
	}
	if w := h.want(200, "GET", crontabs+"/a?pretty=0", "", "User-Agent: curl/8"); w.Body.Bytes()[1] == '\n' {
		t.Error("pretty=0: got indented JSON")
	}
	w := h.want(404, "GET", crontabs+"/x?pretty=true", "")
	if !strings.HasPrefix(w.Body.String(), "{\n  \"kind\": \"Status\"") {
		t.Errorf("got Status %s, want indented JSON", w.Body)
	}
}

// TestIndentedJSON checks that browsers, curl and Wget get indented JSON that ends with a newline. Other clients get it
// only if they request it. Browsers get JSON although they prefer HTML (HPX-008, HPX-011). A slash at the end of a path
// does not change the response (HPX-007).
func TestIndentedJSON(t *testing.T) {
	h := withCronTabs(t)
	const browser = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
	const aggregated = "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	paths := map[string]int{
		"/api": 200, "/api/v1": 200, "/apis": 200, "/apis/stable.example.com": 200, "/apis/stable.example.com/v1": 200,
		"/api/v1/namespaces": 200, "/api/v1/namespaces/default": 200, "/api/v1/none": 404,
		crontabs: 200, crontabs + "/a": 200, crontabs + "/none": 404,
	}
	for path, code := range maps.Clone(paths) {
		paths[path+"/"] = code
		with, without := h.want(code, "GET", path+"/", ""), h.want(code, "GET", path, "")
		if with.Body.String() != without.Body.String() {
			t.Errorf("%s/: got %q, want %q as without the slash", path, with.Body, without.Body)
		}
	}
	for path, code := range paths {
		for _, headers := range [][]string{
			{"User-Agent: curl/8.5.0", "Accept: */*"}, {"User-Agent: Wget/1.21.4", "Accept: */*"},
			{"User-Agent: Mozilla/5.0 (X11; Linux x86_64)", browser},
			{"User-Agent: Mozilla/5.0 (X11; Linux x86_64)", "Accept: text/html"}, {"Accept: application/json;pretty=1"},
			{"User-Agent: curl/8.5.0", aggregated},
		} {
			w := h.do("GET", path, "", headers...)
			if w.Code != code && w.Code != 406 || w.Code == 406 && headers[1] == browser ||
				!indented(w.Body.String()) ||
				!strings.HasPrefix(w.Header().Get("Content-Type"), runtime.ContentTypeJSON) {
				t.Errorf("%s %s: got %d %q, want %d and indented JSON", path, headers, w.Code, w.Body, code)
			}
		}
		if w := h.want(code, "GET", path+"?pretty=true", ""); !indented(w.Body.String()) {
			t.Errorf("%s?pretty=true: got %q, want indented JSON", path, w.Body)
		}
		for _, other := range []*httptest.ResponseRecorder{h.want(code, "GET", path, ""),
			h.want(code, "GET", path+"?pretty=false", "", "User-Agent: curl/8.5.0")} {
			if strings.Count(other.Body.String(), "\n") != 1 {
				t.Errorf("%s: got %q, want JSON in one line", path, other.Body)
			}
		}
	}
	// Indented JSON of built-in kinds has the fields in the order of upstream's Go types. Objects of custom kinds have
	// the stored order.
	h.want(201, "POST", "/api/v1/namespaces/default/configmaps",
		`{"metadata":{"generateName":"m-","labels":{"a":"b"}},"data":{"k":"<v>"}}`)
	for path, start := range map[string]string{
		"/api/v1/namespaces/default": `{"kind":"Namespace","apiVersion":"v1",` +
			`"metadata":{"name":"default","uid":`,
		"/api/v1/namespaces/default/configmaps": `{"kind":"ConfigMapList","apiVersion":"v1",` +
			`"metadata":{"resourceVersion":`,
		"/api/v1/namespaces/default/secrets": `{"kind":"SecretList","apiVersion":"v1",` +
			`"metadata":{"resourceVersion":`,
		crontabs + "/a": `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{`,
	} {
		w, plain := h.want(200, "GET", path+"?pretty=true", ""), h.want(200, "GET", path, "")
		var compact bytes.Buffer
		if err := json.Compact(&compact, w.Body.Bytes()); err != nil || !strings.HasPrefix(compact.String(), start) {
			t.Errorf("%s: got %s, error %v, want it to start with %s", path, w.Body, err, start)
		}
		wantEqual(t, path, tree(t, w.Body), tree(t, plain.Body))
	}
	for _, path := range []string{"/", "/version", "/version/"} { // indented for all clients
		if w := h.want(200, "GET", path, "", browser); !indented(w.Body.String()) {
			t.Errorf("%s: got %q, want indented JSON", path, w.Body)
		}
	}
}

// TestIndentedListsOfAllKinds checks that the indented list of each built-in kind starts with its kind and apiVersion
// (HPX-005, HPX-008).
func TestIndentedListsOfAllKinds(t *testing.T) {
	h, lists := newHarness(t), 0
	for d := range h.engine.Live.Load().Definitions() {
		for _, v := range d.Versions {
			if !v.Served || v.Type == nil {
				continue
			}
			path := "/apis/" + v.APIVersion + "/" + d.Names.Plural
			if v.GroupVersion.Group == "" {
				path = "/api/v1/" + d.Names.Plural
			}
			w := h.do("GET", path, "", "User-Agent: curl/8.5.0")
			start := "{\n  \"kind\": \"" + d.Names.ListKind + "\",\n  \"apiVersion\": \"" + v.APIVersion +
				"\",\n  \"metadata\": {\n    \"resourceVersion\": \""
			if d.Behavior.Compute != nil { // computed lists have no resourceVersion
				start, _, _ = strings.Cut(start, "\n    ")
				start += "},\n  \"items\": ["
			}
			if w.Code == 405 || w.Code == 404 { // the kind has no list
				continue
			}
			if lists++; w.Code != 200 || !strings.HasPrefix(w.Body.String(), start) || !indented(w.Body.String()) {
				t.Errorf("%s: got %d %.300s, want indented JSON that starts with %s", path, w.Code, w.Body, start)
			}
		}
	}
	if lists < 50 {
		t.Errorf("got %d kinds with lists, want at least 50", lists)
	}
}

// indented reports whether body is indented JSON that ends with a newline.
func indented(body string) bool {
	return strings.HasPrefix(body, "{\n  \"") && strings.HasSuffix(body, "\n}\n")
}

// TestAuthenticationAndAuthorization checks requests of anonymous users, invalid tokens and impersonation (CRD-069).
func TestAuthenticationAndAuthorization(t *testing.T) {
	noToken := authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
		return nil, false, nil
	})
	h := withCronTabs(t, func(c *Config) { c.Authenticator.Tokens = bearertoken.New(noToken) })
	const roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	for _, role := range []string{
		`{"metadata":{"name":"health"},"rules":[{"nonResourceURLs":["/healthz"],"verbs":["get"]}]}`,
		`{"metadata":{"name":"self"},"rules":[{"apiGroups":["authentication.k8s.io"],` +
			`"resources":["selfsubjectreviews"],"verbs":["create"]}]}`,
	} {
		h.want(201, "POST", roles, role)
	}
	for role, group := range map[string]string{"health": "system:unauthenticated", "self": "system:authenticated"} {
		h.want(201, "POST", strings.Replace(roles, "roles", "rolebindings", 1), fmt.Sprintf(
			`{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole",`+
				`"name":%[1]q},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":%q}]}`,
			role, group))
	}
	anonymous := func(path string, headers ...string) (int, string) {
		r := newRequest("GET", path, "", headers...)
		r = r.WithContext(t.Context())
		w := serve(h, r)
		return w.Code, message(w)
	}
	if code, text := anonymous(crontabs); code != 403 ||
		text != `crontabs.stable.example.com is forbidden: User "system:anonymous" cannot list resource "crontabs" `+
			`in API group "stable.example.com" in the namespace "default"` {
		t.Errorf("anonymous list: got %d %s, want 403", code, text)
	}
	if code, _ := anonymous(crontabs, "Authorization: Bearer x"); code != 401 {
		t.Errorf("invalid token: got %d, want 401", code)
	}
	if code, _ := anonymous(crontabs+"/a", "Impersonate-User: system:admin"); code != 403 {
		t.Errorf("anonymous impersonation: got %d, want 403", code)
	}
	if code, body := anonymous("/healthz"); code != 200 || body != "ok" {
		t.Errorf("/healthz: got %d %s, want 200 ok", code, body)
	}
	if w := h.do("GET", crontabs+"/a", "", "Impersonate-User: jane"); w.Code != 403 ||
		!strings.Contains(message(w), `User "jane" cannot get resource`) {
		t.Errorf("impersonated jane: got %d %s, want 403", w.Code, w.Body)
	}
	w := h.want(201, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", `{}`, "Impersonate-User: jane",
		"Impersonate-Group: g")
	if review := tree(t, w.Body); at(review, "status", "userInfo", "username") != "jane" ||
		!reflect.DeepEqual(at(review, "status", "userInfo", "groups"), []any{"g", "system:authenticated"}) {
		t.Errorf("got SelfSubjectReview %v, want jane in group g", review)
	}
	h.want(400, "GET", crontabs, "", "Impersonate-Group: g")
}

// TestFutureResourceVersion checks that a list at a future resourceVersion times out with Retry-After (CRD-061).
func TestFutureResourceVersion(t *testing.T) {
	t.Parallel() // the read waits three seconds
	h := withCronTabs(t)
	w := h.want(504, "GET", crontabs+"?resourceVersion=99999", "")
	if w.Header().Get("Retry-After") != "1" ||
		at(tree(t, w.Body), "details", "causes", 0, "reason") != "ResourceVersionTooLarge" {
		t.Errorf("got %v %s, want Retry-After 1 and ResourceVersionTooLarge", w.Header(), w.Body)
	}
}

// TestHealth checks the health endpoints with passing, failing and excluded checks (CRD-070).
func TestHealth(t *testing.T) {
	failure := errors.New("no")
	h := newHarness(t, func(c *Config) {
		c.Live = []health.Check{{Name: "disk", Run: func() error { return nil }}}
		c.Ready = []health.Check{{Name: "store", Run: func() error { return failure }}}
	})
	for path, want := range map[string]string{
		"/healthz": "ok", "/livez/ping": "ok", "/livez?verbose": "[+]ping ok\n[+]disk ok\nlivez check passed\n",
		"/livez?verbose&exclude=disk&exclude=x": "[+]ping ok\n[+]disk excluded: ok\nwarn: some health checks cannot " +
			"be excluded: no matches for \"x\"\nlivez check passed\n",
	} {
		if w := h.want(200, "GET", path, ""); w.Body.String() != want {
			t.Errorf("%s: got %q, want %q", path, w.Body, want)
		}
	}
	const failed = "[+]ping ok\n[-]store failed: reason withheld\n[+]shutdown ok\nreadyz check failed\n"
	if w := h.want(500, "GET", "/readyz", ""); w.Body.String() != failed {
		t.Errorf("/readyz: got %q, want the failed check without its reason", w.Body)
	}
	if w := h.want(500, "GET", "/readyz/store", ""); w.Body.String() != "internal server error: no\n" {
		t.Errorf("/readyz/store: got %q, want the reason", w.Body)
	}
	h.want(404, "GET", "/readyz/nothing", "")
}

// TestHealthOfStorage checks that the storage check also has upstream's names, and that the parameter exclude accepts
// them (CRD-070).
func TestHealthOfStorage(t *testing.T) {
	var failure error
	check := []health.Check{{Name: "storage", Run: func() error { return failure }}}
	h := newHarness(t, func(c *Config) { c.Live, c.Ready = check, check })
	for _, c := range []struct {
		err    error
		path   string
		status int
		want   string
	}{
		{nil, "/livez?verbose", 200, "[+]ping ok\n[+]etcd ok\n[+]storage ok\nlivez check passed\n"},
		{nil, "/readyz/etcd", 200, "ok"},
		{nil, "/readyz/etcd-readiness", 200, "ok"},
		{nil, "/livez/etcd-readiness", 404, "404 page not found\n"},
		{errors.New("no"), "/livez/etcd", 500, "internal server error: no\n"},
		{errors.New("no"), "/livez/storage", 500, "internal server error: no\n"},
		{errors.New("no"), "/livez", 500,
			"[+]ping ok\n[-]etcd failed: reason withheld\n[-]storage failed: reason withheld\nlivez check failed\n"},
		{errors.New("no"), "/livez?exclude=etcd", 200, "ok"},
		{errors.New("no"), "/livez?exclude=storage", 200, "ok"},
		{errors.New("no"), "/livez?exclude=storage&exclude=etcd&verbose", 200,
			"[+]ping ok\n[+]etcd excluded: ok\n[+]storage excluded: ok\nlivez check passed\n"},
		{errors.New("no"), "/readyz?exclude=etcd", 200, "ok"},
	} {
		failure = c.err
		if w := h.want(c.status, "GET", c.path, ""); w.Body.String() != c.want {
			t.Errorf("%s with error %v: got %q, want %q", c.path, c.err, w.Body, c.want)
		}
	}
}

// TestVersion checks that /version has the release of the Kubernetes modules in go.mod (CRD-033).
func TestVersion(t *testing.T) {
	h := newHarness(t)
	v := tree(t, h.want(200, "GET", "/version", "").Body)
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	want := "k8s.io/api v0" + strings.TrimPrefix(resource.KubernetesVersion, "v1")
	if !strings.Contains(string(mod), want+"\n") {
		t.Errorf("go.mod does not require %s", want)
	}
	if v["major"] != "1" || v["minor"] != "37" || v["gitVersion"] != resource.KubernetesVersion {
		t.Errorf("got %v, want 1.37, %s", v, resource.KubernetesVersion)
	}
}

// TestMetrics checks that /metrics has upstream's metrics, and that requests cannot create arbitrary values of
// labels (CRD-070).
func TestMetrics(t *testing.T) {
	h := withCronTabs(t)
	h.do("GET", crontabs+"/a", "")
	h.do("GET", crontabs+"/a/made-up", "")
	body := h.want(200, "GET", "/metrics", "").Body.String()
	for _, want := range []string{
		`apiserver_request_total{code="200",component="apiserver",dry_run="",group="stable.example.com",` +
			`resource="crontabs",scope="resource",subresource="",verb="GET",version="v1"} 1`,
		`apiserver_storage_objects{resource="crontabs.stable.example.com"} 1`,
		`apiserver_current_inflight_requests{request_kind="readOnly"} 1`, "go_goroutines ",
		"process_start_time_seconds ",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics does not contain %s", want)
		}
	}
	if strings.Contains(body, "made-up") {
		t.Error("/metrics has a label value from the path of a request")
	}
}

// TestHeaders checks the warning of a deprecated version, the audit ID and Cache-Control (CRD-007).
func TestHeaders(t *testing.T) {
	h := withCronTabs(t)
	w := h.want(200, "GET", "/apis/stable.example.com/v1beta1/namespaces/default/crontabs/a", "", "Audit-Id: mine")
	if got := w.Header(); got.Get("Warning") != `299 - "stable.example.com/v1beta1 CronTab is deprecated; use `+
		`stable.example.com/v1 CronTab"` ||
		got.Get("Audit-Id") != "mine" || got.Get("Cache-Control") != "no-cache, private" {
		t.Errorf("got headers %v, want the warning, Audit-Id mine and no-cache, private", got)
	}
	if w := h.do("GET", crontabs, ""); len(w.Header().Get("Audit-Id")) != 36 {
		t.Errorf("got headers %v, want an Audit-Id of 36 characters", w.Header())
	}
}

// TestPanic checks that a request whose handler panics gets 500, and is no longer counted as in flight (CRD-070).
func TestPanic(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.Discovery = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("on purpose") })
	})
	h.want(500, "GET", "/apis", "")
	h.server.Drain()
}

// TestLoopback checks that a loopback client acts as its user, and gets error responses (CRD-069).
func TestLoopback(t *testing.T) {
	h := withCronTabs(t)
	client := &http.Client{Transport: h.server.Loopback(access.Loopback())}
	resp, err := client.Get("https://x" + crontabs + "/nothing")
	if err != nil || resp.StatusCode != 404 {
		t.Fatalf("got %v, error %v, want 404", resp, err)
	}
	resp.Body.Close()
}
