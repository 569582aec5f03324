package apiserver_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/apiserver"
)

const numbersCRD = `{"metadata":{"name":"numbers.example.com"},"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"numbers","kind":"Number"},
	"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}},
	"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{
		"replicas":{"type":"integer","x-kubernetes-validations":[{"rule":"self % 2 == 0"}]}}},"status":{"type":"object","properties":{"replicas":{"type":"integer"}}}}}}}]}}`

// apply sends a server-side apply with the body text. It returns the body of the response.
func apply(t *testing.T, s *apiserver.Server, path, text string, status int) string {
	t.Helper()
	return patch(t, s, path+"?fieldManager=test", "apply-patch+yaml", text, status)
}

// TestIntegersInApply checks that a whole number in a server-side apply is an integer, also if it is written as 1e2
// or 2.0. This holds for CEL rules, for /scale and for fields without a schema (SUB-015, VAL-049). Minus zero is
// stored as zero, as in kube-apiserver.
func TestIntegersInApply(t *testing.T) {
	s := start(t, apiserver.Config{})
	post(t, s, crds, numbersCRD)
	until(t, s, "/apis/example.com/v1/numbers", http.StatusOK, "")
	const path = "/apis/example.com/v1/numbers/a"
	apply(t, s, path, `{"apiVersion":"example.com/v1","kind":"Number","metadata":{"name":"a"},"spec":{"replicas":1e2,"x":[-0.0,2.0,4611686018427387904.0,1.5,"\ud83d\ude00\/"]}}`, http.StatusCreated)
	until(t, s, path, http.StatusOK, `"spec":{"replicas":100,"x":[0,2,4611686018427388000,1.5,"😀/"]}`)
	until(t, s, path+"/scale", http.StatusOK, `"spec":{"replicas":100}`)
	if text := apply(t, s, path, `{"apiVersion":"example.com/v1","kind":"Number","metadata":{"name":"a"},"spec":{"replicas":3.0}}`, http.StatusUnprocessableEntity); !strings.Contains(text, "failed rule: self % 2 == 0") {
		t.Error(text)
	}
	post(t, s, "/apis/example.com/v1/numbers",
		`{"apiVersion":"example.com/v1","kind":"Number","metadata":{"name":"b"},"spec":{"x":-0.0}}`)
	until(t, s, "/apis/example.com/v1/numbers/b", http.StatusOK, `"spec":{"x":0}`)
}

// TestFractionsInPatches checks patches that write an integer of a built-in kind with a fraction, such as 2.0. As in
// kube-apiserver, merge patches and JSON patches are rejected, and strategic merge patches are accepted.
func TestFractionsInPatches(t *testing.T) {
	s := start(t, apiserver.Config{})
	const deployments = "/apis/apps/v1/namespaces/default/deployments"
	post(t, s, deployments, `{"metadata":{"name":"a"},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"a","image":"b:1.0"}]}}}}`)
	for _, path := range []string{deployments + "/a", deployments + "/a/scale"} {
		for _, c := range []struct {
			kind, patch string
			status      int
		}{
			{"merge-patch", `{"spec":{"replicas":2}}`, http.StatusOK},
			{"merge-patch", `{"spec":{"replicas":2.0}}`, http.StatusUnprocessableEntity},
			{"merge-patch", `{"spec":{"replicas":1e1}}`, http.StatusUnprocessableEntity},
			{"json-patch", `[{"op":"replace","path":"/spec/replicas","value":3.0}]`, http.StatusUnprocessableEntity},
			{"strategic-merge-patch", `{"spec":{"replicas":4.0}}`, http.StatusOK},
		} {
			if text := patch(t, s, path, c.kind+"+json", c.patch, c.status); c.status != http.StatusOK &&
				!strings.Contains(text, "cannot unmarshal number") {
				t.Errorf("%s: %s", c.patch, text)
			}
		}
	}
}
