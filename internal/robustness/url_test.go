package robustness_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// encodeToken encodes the content of a continue token.
func encodeToken(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// continueToken returns a continue token of revision rv that starts at the key start.
func continueToken(rv int64, start string) string {
	return encodeToken(fmt.Sprintf(`{"v":"meta.k8s.io/v1","rv":%d,"start":%q}`, rv, start))
}

// TestInvalidQueries checks the errors for invalid query parameters and options.
func TestInvalidQueries(t *testing.T) {
	f := newFixture(t)
	long := strings.Repeat("a", 100_000)
	for _, c := range []struct {
		query, message string
		code           int
		reason         metav1.StatusReason
	}{
		{"continue=%21%21", "invalid continue token: continue key is not valid: illegal base64 data at input byte 0",
			400, badRequest},
		{"continue=" + encodeToken("garbage"),
			"invalid continue token: continue key is not valid: invalid character 'g' looking for beginning of value",
			400, badRequest},
		{"continue=" + encodeToken(`{"hello":"world"}`),
			"invalid continue token: continue key is not valid: server does not recognize this encoded version ", 400,
			badRequest},
		{"continue=" + encodeToken(`[]`), "", 400, badRequest},
		{"continue=" + encodeToken(`null`), "", 400, badRequest},
		{"continue=" + encodeToken(`{"v":"meta.k8s.io/v1","rv":1e99,"start":"a"}`), "", 400, badRequest},
		{"continue=" + continueToken(0, "a"),
			"invalid continue token: continue key is not valid: incorrect encoded start resourceVersion (version " +
				"meta.k8s.io/v1)", 400, badRequest},
		{"continue=" + continueToken(1, ""),
			"invalid continue token: continue key is not valid: encoded start key empty (version meta.k8s.io/v1)", 400,
			badRequest},
		{"continue=" + continueToken(-1, "../kube-system/"),
			"invalid continue token: continue key is not valid: ../kube-system/", 400, badRequest},
		{"continue=" + continueToken(-1, "/../../secrets/"), "", 400, badRequest},
		{"continue=" + continueToken(-1, "a/../../x"), "", 400, badRequest},
		{"continue=" + continueToken(-1, "a") + "&resourceVersion=7",
			"specifying resource version is not allowed when using continue", 400, badRequest},
		{"continue=" + encodeToken(strings.Repeat("[", nestingDepth)), "", 400, badRequest},
		{"limit=x", "", 400, badRequest},
		{"limit=99999999999999999999", "", 400, badRequest},
		{"timeoutSeconds=x", "", 400, badRequest},
		{"timeout=x", `invalid timeout specified in the request URL - time: invalid duration "x"`, 400, badRequest},
		{"resourceVersion=x", "", 400, badRequest},
		{"resourceVersion=-1", "", 400, badRequest},
		{"resourceVersion=99999999999999999999999", "", 400, badRequest},
		{"resourceVersionMatch=Exact", "", 422, invalid},
		{"resourceVersionMatch=Nonsense&resourceVersion=1", "", 422, invalid},
		{"sendInitialEvents=true", "", 422, invalid},
		{"watch=1&sendInitialEvents=true&resourceVersionMatch=Exact", "", 422, invalid},
		{"watch=1&resourceVersion=x", "", 500, ""},
		{"labelSelector=a%3D%3D%3D", "", 400, badRequest},
		{"labelSelector=" + url.QueryEscape("a in ("), "", 400, badRequest},
		{"labelSelector=" + url.QueryEscape(strings.Repeat("(", 100_000)), "", 400, badRequest},
		{"labelSelector=%ff", "", 400, badRequest},
		{"labelSelector=" + long, "", 400, badRequest},
		{"labelSelector=a%3D" + long, "", 400, badRequest},
		{"fieldSelector=spec.nonsense%3D1", "", 400, badRequest},
		{"fieldSelector=metadata.name", "", 400, badRequest},
		{"fieldSelector=" + long, "", 400, badRequest},
		{"fieldSelector=" + strings.Repeat("a%3Db,", 20_000), "", 400, badRequest},
		{"fieldSelector=%5C", "", 400, badRequest},
	} {
		for _, path := range []string{configMapsPath, cronTabsPath} {
			f.checkStatus(&requestCase{name: abbreviate(c.query) + " " + path, method: http.MethodGet,
				path: path + "?" + c.query, code: c.code, reason: c.reason, message: c.message})
		}
	}
	for _, c := range []requestCase{
		{method: http.MethodPost, path: configMapsPath + "?dryRun=some", body: `{"metadata":{"name":"x"}}`, code: 422,
			reason: invalid},
		{method: http.MethodPost, path: configMapsPath + "?fieldValidation=No", body: `{"metadata":{"name":"x"}}`,
			code: 422, reason: invalid},
		{method: http.MethodPost, path: configMapsPath + "?fieldManager=" + strings.Repeat("m", 1000),
			body: `{"metadata":{"name":"x"}}`, code: 422, reason: invalid},
		{method: http.MethodPost, path: configMapsPath + "?fieldManager=%00", body: `{"metadata":{"name":"x"}}`,
			code: 422, reason: invalid},
		{method: http.MethodDelete, path: configMapPath + "?gracePeriodSeconds=x", code: 400, reason: badRequest},
		{method: http.MethodDelete, path: configMapPath + "?propagationPolicy=x", code: 422, reason: invalid},
		{method: http.MethodDelete, path: configMapPath, body: `{"preconditions":{"uid":"other"}}`, contentType: asJSON,
			code: 409, reason: metav1.StatusReasonConflict},
		{method: http.MethodDelete, path: configMapPath, body: `{"kind":`, contentType: asJSON, code: 400,
			reason: badRequest},
		{method: http.MethodDelete, path: configMapPath, body: `{"a":` + strings.Repeat("[", nestingDepth),
			contentType: asJSON, code: 400, reason: badRequest},
		{method: http.MethodDelete, path: configMapPath, body: "k8s\x00\x12\xff\xff", contentType: asProtobuf,
			code: 400, reason: badRequest},
		{method: http.MethodDelete, path: configMapPath, body: aliasBomb(12), contentType: asYAML, code: 400,
			reason: badRequest},
		{method: http.MethodDelete, path: configMapPath, body: unsizedBody(4 << 20), contentType: asJSON, code: 413,
			reason: entityTooLarge, message: tooLargeMessage},
		{method: http.MethodDelete, path: configMapsPath + "?labelSelector=a%3D%3D%3D", code: 400, reason: badRequest},
		{method: http.MethodDelete, path: configMapsPath, body: "x", contentType: "text/plain", code: 415,
			reason: unsupportedMediaType},
		{method: http.MethodPatch, path: configMapPath + "?force=true", contentType: asMerge, body: "{}", code: 422,
			reason: invalid},
		{method: http.MethodPatch, path: configMapPath, contentType: asApply, body: "{}", code: 422, reason: invalid},
	} {
		c.name = c.method + " " + abbreviate(c.path)
		f.checkStatus(&c)
	}
	f.checkUnchanged()
}

// TestContinueTokensStayInNamespace checks that a forged continue token returns no objects of another namespace.
func TestContinueTokensStayInNamespace(t *testing.T) {
	f := newFixture(t)
	f.mustSend(http.MethodPost, "/api/v1/namespaces/kube-system/configmaps", asJSON, `{"metadata":{"name":"hidden"}}`)
	f.mustSend(http.MethodPost, "/api/v1/namespaces", asJSON, `{"metadata":{"name":"default2"}}`)
	f.mustSend(http.MethodPost, "/api/v1/namespaces/default2/configmaps", asJSON, `{"metadata":{"name":"hidden"}}`)
	f.recordState()
	for _, start := range []string{"/", "a", "/a", "\x00", "a\x00", "\x7f", "zzz", "/registry/secrets/", "//",
		"2/hidden", "..", "../", "../default2/hidden", "\xff", "victim/../../default2", "registry", "..\x00",
		"%2e%2e/"} {
		for _, rv := range []int64{-1, -1 << 63, 1, 5, 1 << 40} {
			query := url.Values{"continue": {continueToken(rv, start)}, "limit": {"100"}, "timeout": {"100ms"}}
			c := &requestCase{name: fmt.Sprintf("%q at %d", start, rv), method: http.MethodGet,
				path: configMapsPath + "?" + query.Encode()}
			code, data := f.do(f.client, c)
			var l metav1.PartialObjectMetadataList
			if err := json.Unmarshal(data, &l); err != nil || code >= 500 && code != 504 {
				t.Errorf("%s: got %d %s", c.name, code, data)
			}
			for _, item := range l.Items {
				if item.Namespace != "default" {
					t.Errorf("%s: got ConfigMap %s of namespace %s, want only default", c.name, item.Name,
						item.Namespace)
				}
			}
			if rv == 1<<40 {
				break
			}
		}
	}
	f.checkUnchanged()
}

// sendRawPath sends a request with the path unchanged. It returns the code, and the name or message of the response.
func (f *fixture) sendRawPath(method, path string) (int, string) {
	f.t.Helper()
	r := f.newRequest(&requestCase{name: path, method: method, path: "/"})
	r.URL.Opaque = "//" + f.host + path
	resp, err := f.client.Do(r)
	if err != nil {
		f.t.Errorf("%s: %v", abbreviate(path), err)
		return 0, ""
	}
	defer resp.Body.Close()
	var s struct {
		Message  string
		Metadata metav1.ObjectMeta
	}
	_ = json.NewDecoder(resp.Body).Decode(&s)
	return resp.StatusCode, s.Metadata.Name + s.Message
}

// TestMalformedPaths checks the status of GETs of paths with dots, escapes, and empty or long segments. Writes to these
// paths must fail.
func TestMalformedPaths(t *testing.T) {
	f := newFixture(t)
	ns := "/api/v1/namespaces/"
	for _, c := range []struct {
		path string
		code int
	}{
		{configMapsPath + "/..", 400},
		{configMapsPath + "/.", 400},
		{configMapsPath + "/%2e%2e", 400},
		{configMapsPath + "/%2E", 400},
		{configMapsPath + "/..%2f..", 404},
		{configMapsPath + "/%2e%2e%2fvictim", 404},
		{configMapsPath + "/victim%2f", 200},
		{configMapsPath + "/a%252fb", 400},
		{configMapsPath + "/%00", 404},
		{configMapsPath + "/%ff", 404},
		{configMapsPath + "/%0d%0a", 404},
		{configMapsPath + "/" + strings.Repeat("a", 100_000), 404},
		{ns + strings.Repeat("a/", 10_000), 404},
		{ns + strings.Repeat("/", 10_000), 200},
		{ns + strings.Repeat("/", 10_000) + "x", 404},
		{ns + "../configmaps", 400},
		{ns + "%2e%2e/configmaps/victim", 400},
		{ns + "./configmaps/victim", 400},
		{ns + "default/../default/configmaps/victim", 404},
		{ns + "/configmaps/victim", 400},
		{ns + "default//victim", 404},
		{ns + "default/configmaps//", 200},
		{ns + "default%2fconfigmaps/victim", 200},
		{"/api//v1/namespaces", 404},
		{"/api/v1//namespaces", 404},
		{"/apis//v1/namespaces", 404},
		{"/apis///", 404},
		{"/api/v1/configmaps/victim", 404},
		{ns + "default/namespaces/default", 404},
		{ns + "default/namespaces", 404},
		{ns + "default/status", 200},
		{"/api/v1/namespaces/default/configmaps/victim/status", 404},
		{"/api/v1/namespaces/default/configmaps/victim/a/b/c/d/e/f/g", 404},
		{"/..", 404},
		{"/../../../etc/passwd", 404},
		{"/%2e%2e/%2e%2e/etc/passwd", 404},
		{"/openapi/v3/../../etc/passwd", 404},
		{"/openapi/v3/apis/%2e%2e/v1", 404},
		{"/healthz/../livez", 404},
		{"/livez/nonsense", 404},
		{"/debug/pprof/../heap", 404},
		{"/metrics/", 404},
		{"/healthz/", 404},
		{"/livez/", 404},
		{"/readyz/ping/", 404},
		{"/index.html/", 404},
		{"/version/", 200},
		{"/api/", 200},
		{"/apis/", 200},
		{"/openapi/v2/", 404},
		{"/openapi/v3/", 404},
		{"/apis/stable.example.com/v1/namespaces/../crontabs/victim", 400},
		{"/apis/%2e%2e/v1/x", 404},
		{"/apis/" + strings.Repeat("g", 50_000) + "/v1/x", 404},
		{cronTabsPath + "/..", 400},
		{cronTabsPath + "/%00", 404},
		{cronTabsPath + "/victim/..", 404},
		{cronTabsPath + "/victim/%2e", 404},
		{"/api/v1/watch/namespaces/..%2f/configmaps", 404},
	} {
		code, text := f.sendRawPath(http.MethodGet, c.path)
		if code != c.code {
			t.Errorf("GET %s: got %d, want %d: %s", abbreviate(c.path), code, c.code, abbreviate(text))
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch} {
			if code, text = f.sendRawPath(method, c.path); code < 400 || code >= 500 {
				t.Errorf("%s %s: got %d %s, want 4xx", method, abbreviate(c.path), code, abbreviate(text))
			}
		}
	}
	f.checkUnchanged()
}

// TestUnsupportedMethods checks that unsupported and unknown methods get a status 4xx. Outside /api, 200 is permitted
// too.
func TestUnsupportedMethods(t *testing.T) {
	f := newFixture(t)
	for _, method := range []string{"TRACE", "CONNECT", "OPTIONS", "PROPFIND", "get", "LIST", "WATCH",
		strings.Repeat("M", 10_000), "PUT", "POST", "PATCH"} {
		for _, path := range []string{configMapsPath, configMapPath, cronTabsPath, cronTabPath,
			configMapPath + "/status", "/api/v1/configmaps", "/apis", "/healthz", "/openapi/v2", "/version", "/"} {
			if method == "POST" && (path == configMapsPath || path == cronTabsPath) || method == "CONNECT" &&
				path == "/" {
				continue
			}
			code, data := f.do(f.client, &requestCase{name: abbreviate(method) + " " + path, method: method,
				path: path})
			if (code < 400 || code >= 500) && code != 200 || code == 200 && strings.HasPrefix(path, "/api/") {
				t.Errorf("%s %s: got %d %s, want 4xx", abbreviate(method), path, code, abbreviate(string(data)))
			}
		}
	}
	f.checkUnchanged()
}

// TestInvalidAccept checks the response to invalid and very long Accept headers.
func TestInvalidAccept(t *testing.T) {
	f := newFixture(t)
	const message = "only the following media types are accepted: application/json, application/yaml, " +
		"application/vnd.kubernetes.protobuf"
	for _, accept := range []string{"text/html", "application/json;as=Table;g=x;v=v1",
		"application/json;as=Nonsense;v=v1;g=meta.k8s.io", "x", ";;;,,,=", strings.Repeat("text/a,", 50_000)} {
		f.checkStatus(&requestCase{name: abbreviate(accept), method: http.MethodGet, path: configMapPath,
			header: map[string]string{"Accept": accept}, code: 406, reason: metav1.StatusReasonNotAcceptable,
			message: message})
	}
	for _, accept := range []string{strings.Repeat("*/*,", 50_000), strings.Repeat("*/*;q=0.1;", 50_000),
		"*/*;q=" + strings.Repeat("9", 10_000)} {
		if code, data := f.do(f.client, &requestCase{name: abbreviate(accept), method: http.MethodGet,
			path: configMapPath, header: map[string]string{"Accept": accept}}); code != 200 && code != 406 {
			t.Errorf("%s: got %d %s, want 200 or 406", abbreviate(accept), code, abbreviate(string(data)))
		}
	}
	f.checkUnchanged()
}
