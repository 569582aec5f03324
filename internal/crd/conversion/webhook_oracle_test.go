package conversion

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	upstream "k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/object"
)

// oracle is upstream's converter for CronTabs.
type oracle struct{ convertor runtime.ObjectConvertor }

type noServices struct{}

func (noServices) ResolveEndpoint(string, string, int32) (*url.URL, error) {
	return nil, fmt.Errorf("no services")
}

func newOracle(t *testing.T, config string) oracle {
	t.Helper()
	factory, err := upstream.NewCRConverterFactory(noServices{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = "crontabs.example.com"
	crd.Spec.Group = "example.com"
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1beta1"}, {Name: "v1"}}
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: "Webhook",
		Webhook: &apiextensionsv1.WebhookConversion{}}
	if err := json.Unmarshal([]byte(config), crd.Spec.Conversion.Webhook); err != nil {
		t.Fatal(err)
	}
	safe, _, err := factory.NewConverter(crd)
	if err != nil {
		t.Fatal(err)
	}
	return oracle{safe}
}

// convert returns the JSON of the result, or the error.
func (o oracle) convert(objects ...object.Tree) string {
	v1 := schema.GroupVersion{Group: "example.com", Version: "v1"}
	if len(objects) == 1 {
		out, err := o.convertor.ConvertToVersion(&unstructured.Unstructured{Object: object.Copy(objects[0])}, v1)
		if err != nil {
			return err.Error()
		}
		return string(object.AppendJSON(nil, out.(*unstructured.Unstructured).Object))
	}
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("example.com/v1beta1")
	list.SetKind("CronTab") // upstream's messages contain the kind of the list
	for _, in := range objects {
		list.Items = append(list.Items, unstructured.Unstructured{Object: object.Copy(in)})
	}
	out, err := o.convertor.ConvertToVersion(list, v1)
	if err != nil {
		return err.Error()
	}
	var text strings.Builder
	for _, item := range out.(*unstructured.UnstructuredList).Items {
		text.Write(object.AppendJSON(nil, item.Object))
	}
	return text.String()
}

// convertLocally does the same as oracle.convert, but uses this package for the conversion.
func convertLocally(t *testing.T, config string, objects ...object.Tree) string {
	out, err := newWebhooks(t, "").Convert(t.Context(), version("v1", config), objects)
	if err != nil {
		text, internal := strings.CutPrefix(err.Error(), "Internal error occurred: ")
		if !internal {
			t.Errorf("%v is not an internal error", err)
		}
		return text
	}
	var text []byte
	for _, o := range out {
		text = object.AppendJSON(text, o)
	}
	return string(text)
}

var uuids = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|127.0.0.1:\d+->|conn\d+`)

// first returns the first converted object in a response.
func first(r *review) map[string]any { return r.Response.ConvertedObjects[0].(object.Tree) }
func last(r *review) map[string]any {
	return r.Response.ConvertedObjects[len(r.Response.ConvertedObjects)-1].(object.Tree)
}

func meta(f func(object.Tree)) func(*review) {
	return func(r *review) { f(object.Metadata(last(r))) }
}

// changes holds modifications of a correct response by name. Most of them make the response invalid.
var changes = map[string]func(*review){
	"correct": nil,
	"failed": func(r *review) {
		r.Response.Result = map[string]any{"status": "Failed",
			"message": "because"}
	},
	"failed, no reason":  func(r *review) { r.Response.Result = map[string]any{"status": "Failed"} },
	"failed, no objects": func(r *review) { r.Response.Result["status"], r.Response.ConvertedObjects = "Failed", nil },
	"failure":            func(r *review) { r.Response.Result["status"] = "Failure" },
	"a rich status": func(r *review) {
		r.Response.Result = map[string]any{"status": "Failure", "message": "m", "code": 400, "reason": "BadRequest",
			"details": map[string]any{"name": "x"}}
	},
	"a broken status":     func(r *review) { r.Response.Result = map[string]any{"status": "Success", "code": "400"} },
	"no result":           func(r *review) { r.Response.Result = nil },
	"a status of number":  func(r *review) { r.Response.Result["status"] = 1 },
	"a message of number": func(r *review) { r.Response.Result["message"] = 1 },
	"another uid":         func(r *review) { r.Response.UID = "another" },
	"no uid":              func(r *review) { r.Response.UID = "" },
	"no response":         func(r *review) { r.Response = nil },
	"the request too":     func(r *review) { r.Request = &reviewRequest{UID: "x"} },
	"no apiVersion":       func(r *review) { r.APIVersion = "" },
	"no kind":             func(r *review) { r.Kind = "" },
	"neither":             func(r *review) { r.APIVersion, r.Kind = "", "" },
	"another kind":        func(r *review) { r.Kind = "AdmissionReview" },
	"v1":                  func(r *review) { r.APIVersion = "apiextensions.k8s.io/v1" },
	"v1beta1":             func(r *review) { r.APIVersion = "apiextensions.k8s.io/v1beta1" },
	"v2":                  func(r *review) { r.APIVersion = "apiextensions.k8s.io/v2" },
	"another group":       func(r *review) { r.APIVersion = "admission.k8s.io/v1" },
	"no objects":          func(r *review) { r.Response.ConvertedObjects = []any{} },
	"null objects":        func(r *review) { r.Response.ConvertedObjects = nil },
	"one too many": func(r *review) {
		r.Response.ConvertedObjects = append(r.Response.ConvertedObjects,
			first(r))
	},
	"one too few": func(r *review) { r.Response.ConvertedObjects = r.Response.ConvertedObjects[1:] },
	"another order": func(r *review) {
		o := r.Response.ConvertedObjects
		o[0], o[len(o)-1] = o[len(o)-1], o[0]
	},
	"a null object":           func(r *review) { r.Response.ConvertedObjects[0] = nil },
	"a text":                  func(r *review) { r.Response.ConvertedObjects[0] = "text" },
	"a list":                  func(r *review) { r.Response.ConvertedObjects[0] = []any{} },
	"an empty object":         func(r *review) { r.Response.ConvertedObjects[0] = map[string]any{} },
	"the old version":         func(r *review) { last(r)["apiVersion"] = "example.com/v1beta1" },
	"an unknown version":      func(r *review) { last(r)["apiVersion"] = "example.com/v7" },
	"no version":              func(r *review) { delete(last(r), "apiVersion") },
	"a version of number":     func(r *review) { last(r)["apiVersion"] = 1 },
	"an odd version":          func(r *review) { last(r)["apiVersion"] = "a/b/c" },
	"the object's other kind": func(r *review) { last(r)["kind"] = "Other" },
	"the object's no kind":    func(r *review) { delete(last(r), "kind") },
	"the object's list kind":  func(r *review) { last(r)["kind"], last(r)["items"] = "CronTabList", []any{} },
	"a kind of number":        func(r *review) { last(r)["kind"] = 1 },
	"items":                   func(r *review) { last(r)["items"] = []any{} },
	"another name":            meta(func(m object.Tree) { m["name"] = "other" }),
	"no name":                 meta(func(m object.Tree) { delete(m, "name") }),
	"another namespace":       meta(func(m object.Tree) { m["namespace"] = "other" }),
	"no namespace":            meta(func(m object.Tree) { delete(m, "namespace") }),
	"another object uid":      meta(func(m object.Tree) { m["uid"] = "other" }),
	"a name of number":        meta(func(m object.Tree) { m["name"] = 1 }),
	"no metadata":             func(r *review) { delete(last(r), "metadata") },
	"null metadata":           func(r *review) { last(r)["metadata"] = nil },
	"metadata of text":        func(r *review) { last(r)["metadata"] = "text" },
	"more labels":             meta(func(m object.Tree) { m["labels"] = object.Tree{"a": "b", "c": "d"} }),
	"no labels":               meta(func(m object.Tree) { delete(m, "labels") }),
	"null labels":             meta(func(m object.Tree) { m["labels"] = nil }),
	"empty labels":            meta(func(m object.Tree) { m["labels"] = object.Tree{} }),
	"labels of text":          meta(func(m object.Tree) { m["labels"] = "text" }),
	"a label of number":       meta(func(m object.Tree) { m["labels"] = object.Tree{"a": 1} }),
	"an odd label":            meta(func(m object.Tree) { m["labels"] = object.Tree{"a": "b c"} }),
	"an odd label key":        meta(func(m object.Tree) { m["labels"] = object.Tree{"a b": "c"} }),
	"annotations":             meta(func(m object.Tree) { m["annotations"] = object.Tree{"a": "b c"} }),
	"an odd annotation":       meta(func(m object.Tree) { m["annotations"] = object.Tree{"a b": "c"} }),
	"large annotations": meta(func(m object.Tree) {
		m["annotations"] = object.Tree{"a": strings.Repeat("x",
			300<<10)}
	}),
	"annotations of a list": meta(func(m object.Tree) { m["annotations"] = []any{} }),
	"other metadata": meta(func(m object.Tree) {
		m["finalizers"], m["generation"], m["managedFields"] = []any{"f"}, 99, nil
		m["ownerReferences"], m["creationTimestamp"], m["resourceVersion"] = []any{}, "2020-01-01T00:00:00Z", "12"
	}),
}

// TestResponsesAgainstUpstream checks that all responses of a webhook have upstream's results and error texts.
// CNV-018 CNV-019 CNV-020 CNV-021 CNV-053 CNV-054 CNV-055 CNV-056 CNV-057 CNV-058 CNV-061 CNV-062
func TestResponsesAgainstUpstream(t *testing.T) {
	for name, change := range changes {
		for _, v := range []string{"v1", "v1beta1"} {
			for _, objects := range [][]object.Tree{{cronTab("a")}, {cronTab("a"), cronTab("b")}} {
				h := newHook(t, change)
				compare(t, fmt.Sprintf("%s, %s, %d objects", name, v, len(objects)), h.config(v), objects)
				h.Close()
			}
		}
	}
}

// withoutOrigin removes the prefix with the kind from an error about an object that cannot be decoded. Upstream omits
// this prefix for a single object.
func withoutOrigin(text string) string {
	rest, found := strings.CutPrefix(text,
		"conversion webhook for example.com/v1beta1, Kind=CronTab returned invalid object: ")
	if found && !strings.HasPrefix(rest, "must have") {
		return rest
	}
	return text
}

func compare(t *testing.T, name, config string, objects []object.Tree) {
	t.Helper()
	got := uuids.ReplaceAllString(convertLocally(t, config, objects...), "…")
	want := uuids.ReplaceAllString(newOracle(t, config).convert(objects...), "…")
	got = withoutOrigin(got)
	if got != want {
		t.Errorf("%s:\n got %.600s\nwant %.600s", name, got, want)
	}
}

// raw contains, by name, handlers whose responses are not a ConversionReview.
var raw = map[string]http.HandlerFunc{
	"nothing":         func(http.ResponseWriter, *http.Request) {},
	"no JSON":         respond(200, "application/json", "{"),
	"text":            respond(200, "text/plain", "hello"),
	"html":            respond(200, "text/html", "<html></html>"),
	"null":            respond(200, "application/json", "null"),
	"a list":          respond(200, "application/json", "[]"),
	"an empty object": respond(200, "application/json", "{}"),
	"a string":        respond(200, "application/json", `"x"`),
	"a Status": respond(200, "application/json",
		`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"m","code":500}`),
	"two documents":   respond(200, "application/json", "{}{}"),
	"a redirect":      respond(301, "text/plain", ""),
	"not found":       respond(404, "text/plain", "no such page"),
	"not found, JSON": respond(404, "application/json", `{"a":1}`),
	"refused":         respond(403, "text/plain", "go away"),
	"who are you":     respond(401, "", "who?"),
	"bad request":     respond(400, "text/plain; charset=utf-8", "bad\n"),
	"an error":        respond(500, "text/plain", "oops"),
	"an error, JSON":  respond(500, "application/json", "{}"),
	"a gateway":       respond(502, "text/html", "<html>"),
	"unavailable":     respond(503, "text/plain", "later"),
	"a gateway late":  respond(504, "text/plain", "later"),
	"teapot":          respond(418, "text/plain", "tea"),
	"a Status at 422": respond(422, "application/json",
		`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"m","code":422}`),
}

func respond(code int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if contentType != "" {
			w.Header().Set("Content-Type", contentType)
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// TestMalformedResponsesAgainstUpstream checks that responses other than a ConversionReview have upstream's
// errors.
// CNV-062
func TestMalformedResponsesAgainstUpstream(t *testing.T) {
	for name, answer := range raw {
		for _, v := range []string{"v1", "v1beta1"} {
			h := newRawHook(t, func(w http.ResponseWriter, _ review) { answer(w, nil) })
			h.Config.ErrorLog = log.New(io.Discard, "", 0)
			compare(t, name+", "+v, h.config(v), []object.Tree{cronTab("a")})
			h.Close()
		}
	}
}

// TestConnectionsAgainstUpstream checks the errors for an unreachable webhook and for one with an invalid
// certificate.
// CNV-025 CNV-039 CNV-044
func TestConnectionsAgainstUpstream(t *testing.T) {
	h := newHook(t, nil)
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	other := strings.Replace(h.config(), h.ca(), otherCA(t), 1)
	compare(t, "another CA", other, []object.Tree{cronTab("a")})
	compare(t, "the system's CAs", strings.Replace(h.config(), h.ca(), "", 1), []object.Tree{cronTab("a")})
	compare(t, "another name", strings.Replace(h.config(), "127.0.0.1", "localhost", 1), []object.Tree{cronTab("a")})
	config := h.config()
	h.Close()
	compare(t, "dead", config, []object.Tree{cronTab("a")})
}
