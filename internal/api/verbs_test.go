package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// TestVerbs checks each verb for objects of a custom kind (CRD-018, CRD-002, CRD-023).
func TestVerbs(t *testing.T) {
	h := withCronTabs(t)
	got := tree(t, h.want(200, "GET", crontabs+"/a", "").Body)
	if at(got, "spec", "cronSpec") != "* * * * */5" || at(got, "metadata", "namespace") != "default" ||
		at(got, "metadata", "resourceVersion") == "" {
		t.Errorf("GET: got %v", got)
	}
	for _, p := range []string{crontabs, "/apis/stable.example.com/v1/crontabs"} {
		list := tree(t, h.want(200, "GET", p, "").Body)
		if list["kind"] != "CronTabList" || list["apiVersion"] != "stable.example.com/v1" ||
			at(list, "items", 0, "metadata", "name") != "a" || at(list, "metadata", "resourceVersion") == "" {
			t.Errorf("%s: got list %v, want a CronTabList with a", p, list)
		}
	}
	put := strings.Replace(h.do("GET", crontabs+"/a", "").Body.String(), `"replicas":3`, `"replicas":4`, 1)
	if got := tree(t, h.want(200, "PUT", crontabs+"/a", put).Body); at(got, "spec", "replicas") != 4.0 {
		t.Errorf("PUT: got %v, want 4 replicas", got)
	}
	h.want(409, "PUT", crontabs+"/a", put)
	got = tree(t, h.want(200, "PATCH", crontabs+"/a", `{"spec":{"image":"x"}}`,
		"Content-Type: application/merge-patch+json").Body)
	if at(got, "spec", "image") != "x" {
		t.Errorf("PATCH: got %v, want image x", got)
	}
	h.want(200, "PATCH", crontabs+"/a/status", `{"status":{"ok":true}}`, "Content-Type: application/merge-patch+json")
	w := h.want(201, "PATCH", crontabs+"/b?fieldManager=m&force=true",
		"apiVersion: stable.example.com/v1\nkind: CronTab\nmetadata: {name: b}\nspec: {replicas: 1}\n",
		"Content-Type: application/apply-patch+yaml")
	if m := at(tree(t, w.Body), "metadata", "managedFields", 0, "manager"); m != "m" {
		t.Errorf("got manager %v, want m", m)
	}
	uid := at(tree(t, h.do("GET", crontabs+"/b", "").Body), "metadata", "uid")
	status := tree(t, h.want(200, "DELETE", crontabs+"/b", "").Body)
	if status["status"] != "Success" || at(status, "details", "uid") != uid ||
		at(status, "details", "kind") != "crontabs" || at(status, "details", "group") != "stable.example.com" ||
		at(status, "details", "name") != "b" {
		t.Errorf("DELETE: got %v, want a Status with the details of b", status)
	}
	h.wantError(404, `crontabs.stable.example.com "b" not found`, "GET", crontabs+"/b", "")
	if list := tree(t, h.want(200, "DELETE", crontabs, "").Body); list["kind"] != "CronTabList" ||
		at(list, "items", 0, "metadata", "name") != "a" {
		t.Errorf("DELETE of the collection: got %v, want a CronTabList with a", list)
	}
}

// SUB-047
func TestDeleteWithFinalizerAnswersTheObject(t *testing.T) {
	h := withCronTabs(t)
	h.want(200, "PATCH", crontabs+"/a", `{"metadata":{"finalizers":["example.com/x"]}}`,
		"Content-Type: application/merge-patch+json")
	got := tree(t, h.want(200, "DELETE", crontabs+"/a", "").Body)
	if got["kind"] != "CronTab" || at(got, "metadata", "deletionTimestamp") == nil {
		t.Errorf("DELETE answers %v", got)
	}
	h.want(202, "DELETE", crontabs+"/a", `{"apiVersion":"v1","kind":"DeleteOptions","orphanDependents":false}`)
}

// TestUnservedPaths checks that paths which are not served get 404, and invalid names 400 (CRD-028, CRD-029, HPX-011).
func TestUnservedPaths(t *testing.T) {
	h := withCronTabs(t)
	generic := "the server could not find the requested resource"
	for path, want := range map[string]string{
		"/apis/stable.example.com/v1/shirts":                 generic,
		"/apis/stable.example.com/v2/crontabs":               generic,
		"/apis/nowhere.example.com/v1/shirts/x":              generic,
		"/apis/stable.example.com/v1/crontabs/a":             generic, // the path lacks the namespace
		"/apis/stable.example.com/v1/namespaces//crontabs/a": generic,
		"/apis//v1/configmaps":                               generic,
		"/nothing":                                           generic,
		"/apis/stable.example.com/v1/../v1/crontabs":         generic,
		crontabs + "/a/status/more":                          generic,
		"/api/v1/shirts":                                     generic,
		"/apis/coordination.k8s.io/v1/shirts":                generic,
		"/api/v1/namespaces/default/configmaps/x/nothing":    generic,
		crontabs + "/a/nothing":                              `crontabs.stable.example.com "a" not found`,
		"/api/v1/namespaces/x%2F..%2Fy/configmaps":           generic,
		"/api/v1//configmaps":                                generic,
	} {
		h.wantError(404, want, "GET", path, "")
	}
	h.wantError(400, `Name parameter invalid: "..": may not be '..'`, "GET", crontabs+"/..", "")
	h.wantError(400, `Name parameter invalid: "a%b": may not contain '%'`, "GET", crontabs+"/a%25b", "")
	h.wantError(400, `Namespace parameter invalid: "..": may not be '..'`, "GET", "/api/v1/namespaces/../configmaps",
		"")
}

// TestOtherMethods checks methods that a path does not support, and a POST to the path of an object (CRD-051).
func TestOtherMethods(t *testing.T) {
	h := withCronTabs(t)
	h.wantError(405, `options is not supported on resources of kind "crontabs.stable.example.com"`[len("options"):],
		"OPTIONS", crontabs, "")
	h.wantError(409, `crontabs.stable.example.com "a" already exists`, "POST", crontabs+"/b", crontabA)
	wantEqual(t, "created", at(tree(t, h.want(201, "POST", crontabs+"/b",
		strings.Replace(crontabA, `"a"`, `"c"`, 1)).Body), "metadata", "name"), "c")
	h.wantError(405, "the server does not allow this method on the requested resource", "POST", "/api/v1/namespaces/x",
		"{}")
	h.wantError(400, "name must be provided", "PUT", crontabs, crontabA)
	h.wantError(400, "name must be provided", "PATCH", crontabs, "{}", "Content-Type: application/merge-patch+json")
	h.wantError(405, `delete is not supported on resources of kind "crontabs.stable.example.com"`, "DELETE",
		crontabs+"/a/status", "")
	h.wantError(405, "the server does not allow this method on the requested resource", "DELETE", "/api/v1/namespaces",
		"")
	h.wantError(405, "the server does not allow this method on the requested resource", "POST", "/api/v1/configmaps",
		"{}")
	h.wantError(405, "the server does not allow this method on the requested resource", "GET",
		"/apis/authentication.k8s.io/v1/selfsubjectreviews", "")
	if w := h.want(200, "HEAD", crontabs+"/a", ""); w.Header().Get("Content-Type") != runtime.ContentTypeJSON {
		t.Errorf("HEAD: got headers %v, want Content-Type %s", w.Header(), runtime.ContentTypeJSON)
	}
}

// TestBodies checks the formats of request and response bodies, and the errors for malformed ones (CRD-068).
func TestBodies(t *testing.T) {
	h := withCronTabs(t)
	yaml := "apiVersion: stable.example.com/v1\nkind: CronTab\nmetadata: {name: yam}\nspec: {cronSpec: x}\n"
	h.want(201, "POST", crontabs, yaml, "Content-Type: application/yaml")
	w := h.want(200, "GET", crontabs+"/yam", "", "Accept: application/yaml")
	if !strings.Contains(w.Body.String(), "cronSpec: x\n") ||
		w.Header().Get("Content-Type") != runtime.ContentTypeYAML {
		t.Errorf("YAML: got %s", w.Body)
	}
	w = h.want(200, "GET", crontabs, "", "Accept: application/yaml")
	if !strings.HasPrefix(w.Body.String(), "apiVersion: stable.example.com/v1\nitems:\n- ") {
		t.Errorf("list in YAML: got %s", w.Body)
	}
	const accepted = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
	h.wantText(406, accepted, "GET", crontabs+"/a", "", "Accept: application/vnd.kubernetes.protobuf")
	h.wantError(406, "only the following media types are accepted: "+accepted, "GET", crontabs+"/a", "",
		"Accept: application/cbor")
	h.wantError(406, "only the following media types are accepted: application/json;stream=watch, "+
		"application/vnd.kubernetes.protobuf;stream=watch",
		"GET", crontabs+"?watch=1", "", "Accept: application/yaml;sv=v1, application/json;sv=v2")
	h.wantError(415, "the body of the request was in an unknown format - accepted media types include: "+accepted,
		"POST", crontabs, "x", "Content-Type: text/plain")
	h.wantError(415, "the body of the request was in an unknown format - accepted media types include: "+
		"application/json, application/yaml",
		"POST", crontabs, "k8s\x00", "Content-Type: application/vnd.kubernetes.protobuf")
	h.wantError(415, "the body of the request was in an unknown format - accepted media types include: "+
		"application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
		"PATCH", crontabs+"/a", "{}", "Content-Type: application/strategic-merge-patch+json")
	h.wantError(400, "the object provided is unrecognized (must be of type CronTab): couldn't get version/kind; "+
		"json parse error: unexpected end of JSON input (<empty>)", "POST", crontabs, "")
	h.wantError(400, "the object provided is unrecognized (must be of type CronTab): couldn't get version/kind; "+
		"json parse error: unexpected end of JSON input ({\"a\":)", "POST", crontabs, `{"a":`)
	deep := strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000)
	if w := h.want(400, "POST", crontabs, deep); !strings.Contains(message(w), "exceeded max depth") {
		t.Errorf("deeply nested body: got %s, want an error about the depth", w.Body)
	}
}

// TestLargeBody checks that a body of more than 3 MiB gets 413, with or without a Content-Length (CRD-073).
func TestLargeBody(t *testing.T) {
	h := withCronTabs(t)
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		path := crontabs + "/a"
		if method == "POST" {
			path = crontabs
		}
		h.wantError(413, "Request entity too large: limit is 3145728", method, path, strings.Repeat(" ", 3<<20+1),
			"Content-Type: "+map[bool]string{true: "application/merge-patch+json", false: runtime.ContentTypeJSON}[method == "PATCH"])
	}
	r := newRequest("POST", crontabs, strings.Repeat(" ", 3<<20+1))
	r.ContentLength = -1 // no Content-Length
	w := httptest.NewRecorder()
	h.server.ServeHTTP(w, r)
	if w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("without Content-Length: got %d, want 413", w.Code)
	}
}

// TestExpiredTimeout checks that a request whose timeout has expired gets the same error for all verbs, and changes no
// object.
func TestExpiredTimeout(t *testing.T) {
	h := withCronTabs(t)
	before := h.do("GET", crontabs, "").Body.String()
	for _, c := range [][3]string{
		{"GET", crontabs + "/a", ""},
		{"GET", crontabs, ""},
		{"POST", crontabs, strings.Replace(crontabA, `"a"`, `"b"`, 1)},
		{"PUT", crontabs + "/a", crontabA},
		{"PATCH", crontabs + "/a", `{"metadata":{"labels":{"a":"b"}}}`},
		{"DELETE", crontabs + "/a", ""},
		{"DELETE", crontabs, ""},
	} {
		h.wantError(504, "Timeout: request did not complete within the allotted timeout", c[0], c[1]+"?timeout=1ns",
			c[2], "Content-Type: application/json")
	}
	if after := h.do("GET", crontabs, "").Body.String(); after != before {
		t.Errorf("got %s, want the objects unchanged: %s", after, before)
	}
}

// TestOptionsAreChecked checks the validation of the options of each verb (CRD-058).
func TestOptionsAreChecked(t *testing.T) {
	h := withCronTabs(t)
	for query, code := range map[string]int{
		"dryRun=Maybe": 422, "fieldValidation=Loud": 422,
		"fieldManager=" + strings.Repeat("x", 129): 422, "fieldManager=%01": 422,
		"timeout=soon": 400, "dryRun=All": 201, "timeout=10s": 409,
	} {
		body := strings.Replace(crontabA, `"a"`, `"dry"`, 1)
		if code == 409 {
			body = crontabA
		}
		h.want(code, "POST", crontabs+"?"+query, body)
	}
	h.want(404, "GET", crontabs+"/dry", "")
	h.wantError(400, `invalid timeout specified in the request URL - time: invalid duration "soon"`, "GET",
		crontabs+"?timeout=soon", "")
	h.want(422, "PATCH", crontabs+"/a", "{}", "Content-Type: application/apply-patch+yaml")
	h.want(422, "DELETE", crontabs+"/a?dryRun=Maybe", "")
	h.want(400, "DELETE", crontabs+"/a", `{"kind":"Secret","apiVersion":"v1"}`)
	h.want(200, "DELETE", crontabs+"/a", "kind: DeleteOptions\napiVersion: v1\ndryRun: [All]\n",
		"Content-Type: application/yaml")
	h.want(200, "GET", crontabs+"/a", "")
	h.want(422, "GET", crontabs+"?resourceVersionMatch=Exact", "")
	h.want(400, "GET", crontabs+"?labelSelector=%3D%3D", "")
	h.want(400, "GET", crontabs+"?fieldSelector=spec.nothing%3D1", "")
	h.want(400, "GET", crontabs+"?limit=many", "")
	h.want(400, "GET", crontabs+"/a?export=1", "")
}

// TestFieldValidation checks the treatment of unknown and duplicate fields by each fieldValidation mode (CRD-059).
func TestFieldValidation(t *testing.T) {
	h := withCronTabs(t)
	body := strings.Replace(crontabA, `"replicas":3`, `"foo":1`, 1)
	h.wantError(400, `CronTab in version "v1" cannot be handled as a CronTab: strict decoding error: unknown field `+
		`"spec.foo"`, "POST", crontabs+"?fieldValidation=Strict", strings.Replace(body, `"a"`, `"s"`, 1))
	w := h.want(201, "POST", crontabs, strings.Replace(body, `"a"`, `"w"`, 1))
	if got := w.Header()["Warning"]; len(got) != 1 || got[0] != `299 - "unknown field \"spec.foo\""` {
		t.Errorf("got warnings %q, want one about the unknown field", got)
	}
	w = h.want(201, "POST", crontabs+"?fieldValidation=Ignore", strings.Replace(body, `"a"`, `"i"`, 1))
	if got := w.Header()["Warning"]; got != nil {
		t.Errorf("fieldValidation=Ignore: got warnings %q, want none", got)
	}
	w = h.want(201, "POST", crontabs,
		"apiVersion: stable.example.com/v1\nkind: CronTab\nmetadata: {name: d}\nspec: {replicas: 1, replicas: 2}\n",
		"Content-Type: application/yaml")
	if got := w.Header()["Warning"]; len(got) != 1 || got[0] != `299 - "line 4: key \"replicas\" already set in map"` {
		t.Errorf("got warnings %q, want one about the duplicate field", got)
	}
}
