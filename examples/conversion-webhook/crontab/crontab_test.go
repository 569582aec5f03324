package crontab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
)

var examples = outside.Path("spec/examples/09-conversion/conversionreview-")

// example returns the content of an example file of the documentation.
func example(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(examples + name + ".json")
	if err != nil {
		t.Skipf("the examples of the documentation are not available: %v", err)
	}
	return string(data)
}

// post sends a ConversionReview to the handler and returns the response.
func post(t *testing.T, body string) any {
	t.Helper()
	r := httptest.NewRequest("POST", "/crdconvert?timeout=30s", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	return decoded(t, w.Body.Bytes())
}

func decoded(t *testing.T, data []byte) (out any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// Templates of reviews of two objects. %s is the version of the review.
const (
	reviewRequest = `{"apiVersion": "apiextensions.k8s.io/%s", "kind": "ConversionReview", "request": {"uid": "c-3", "desiredAPIVersion": "example.com/v1", "objects": [
		{"apiVersion": "example.com/v1beta1", "kind": "CronTab", "hostPort": "[::1]:80", "metadata": {"name": "nightly", "namespace": "jobs", "uid": "a-1"}},
		{"apiVersion": "example.com/v1beta1", "kind": "CronTab", "hostPort": "b.example:81", "spec": {"kept": [1]}, "metadata": {"name": "everywhere", "generation": 2}}]}}`
	reviewSuccess = `{"apiVersion": "apiextensions.k8s.io/%s", "kind": "ConversionReview", "response": {"uid": "c-3", "result": {"status": "Success"}, "convertedObjects": [
		{"apiVersion": "example.com/v1", "kind": "CronTab", "host": "::1", "port": "80", "metadata": {"name": "nightly", "namespace": "jobs", "uid": "a-1"}},
		{"apiVersion": "example.com/v1", "kind": "CronTab", "host": "b.example", "port": "81", "spec": {"kept": [1]}, "metadata": {"name": "everywhere", "generation": 2}}]}}`
	reviewFailed = `{"apiVersion": "apiextensions.k8s.io/%s", "kind": "ConversionReview", "response": {"uid": "c-3", "result": {"status": "Failed",
		"message": "hostPort could not be parsed into a separate host and port"}}}`
)

// TestReviews checks the responses to requests in both versions. CNV-011 CNV-013 CNV-017 CNV-027 CNV-051 CNV-052
// CNV-053 CNV-056 CNV-057 CNV-058.
func TestReviews(t *testing.T) {
	for _, v := range []string{"v1", "v1beta1"} {
		checkResponses(t, v, fmt.Sprintf(reviewRequest, v), "b.example:81", fmt.Sprintf(reviewSuccess, v),
			fmt.Sprintf(reviewFailed, v))
	}
}

// TestDocumentedReviews checks the responses to the reviews in the documentation. CNV-011 CNV-013 CNV-017 CNV-027
// CNV-051 CNV-052 CNV-053 CNV-056 CNV-057 CNV-058.
func TestDocumentedReviews(t *testing.T) {
	for _, v := range []string{"v1", "v1beta1"} {
		checkResponses(t, v, example(t, "request."+v), "example.com:2345", example(t, "response-success."+v),
			example(t, "response-failed."+v))
	}
}

// checkResponses checks that a request gets the response in success. It also checks that the same request with a
// malformed hostPort gets the response in failed.
func checkResponses(t *testing.T, name, request, hostPort, success, failed string) {
	t.Helper()
	if got, want := post(t, request), decoded(t, []byte(success)); !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %v, want %v", name, got, want)
	}
	for _, bad := range []string{"example.com", "a:b:c"} {
		got := post(t, strings.Replace(request, hostPort, bad, 1))
		if want := decoded(t, []byte(failed)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s with %s: got %v, want %v", name, bad, got, want)
		}
	}
}

// TestRoundTrip checks that an object is unchanged after a conversion to v1 and back. (CNV-013)
func TestRoundTrip(t *testing.T) {
	for _, text := range []string{`"hostPort":"[::1]:80"`, `"hostPort":"localhost:1234"`, `"other":"x"`} {
		request := func(from, to, object string) string {
			return `{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{"uid":"u","desiredAPIVersion":"example.com/` + to +
				`","objects":[` + object + `]}}`
		}
		object := `{"apiVersion":"example.com/v1beta1","kind":"CronTab","metadata":{"name":"a"},` + text + `}`
		v1, err := json.Marshal(converted(t, post(t, request("v1beta1", "v1", object))))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(v1), "hostPort") {
			t.Errorf("%s at v1: %s", text, v1)
		}
		back := converted(t, post(t, request("v1", "v1beta1", string(v1))))
		if want := decoded(t, []byte(object)); !reflect.DeepEqual(back, want) {
			t.Errorf("%s: round trip returned %v", text, back)
		}
	}
}

func converted(t *testing.T, review any) any {
	t.Helper()
	response := review.(map[string]any)["response"].(map[string]any)
	objects, _ := response["convertedObjects"].([]any)
	if len(objects) != 1 {
		t.Fatalf("response %v", response)
	}
	return objects[0]
}
