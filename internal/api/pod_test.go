package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/resource"
)

const podJSON = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"default"},` +
	`"spec":{"containers":[{"name":"c","image":"i"}]}}`

// TestBinding checks that a Binding sets the node of a Pod once, and that a patch cannot set it (SCD-040).
func TestBinding(t *testing.T) {
	h := newHarness(t)
	const binding = `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"p","annotations":{"a":"b"}},` +
		`"target":{"kind":"Node","name":"m"}}`
	h.want(http.StatusCreated, "POST", pods, podJSON)
	h.want(http.StatusUnprocessableEntity, "PATCH", pods+"/p", `{"spec":{"nodeName":"m"}}`,
		"Content-Type: application/merge-patch+json")
	h.wantText(http.StatusBadRequest, "name in URL does not match name in Binding object", "POST", pods+"/p/binding",
		strings.Replace(binding, `"name":"p"`, `"name":"q"`, 1))
	versioned := strings.Replace(binding, `"name":"p"`, `"name":"p","resourceVersion":"abc"`, 1)
	h.wantText(http.StatusConflict, "ResourceVersion in precondition: abc", "POST", pods+"/p/binding", versioned)
	h.wantText(http.StatusInternalServerError, `target.kind`, "POST", pods+"/p/binding",
		strings.Replace(binding, `"Node"`, `"Pod"`, 1))
	h.wantText(http.StatusCreated, `"status":"Success"`, "POST", pods+"/p/binding", binding)
	bound := h.want(http.StatusOK, "GET", pods+"/p", "").Body.String()
	for _, has := range []string{`"nodeName":"m"`, `"a":"b"`, `"type":"PodScheduled"`} {
		if !strings.Contains(bound, has) {
			t.Errorf("got %s, want it to contain %s", bound, has)
		}
	}
	h.wantText(http.StatusConflict, `pod p is already assigned to node \"m\"`, "POST", pods+"/p/binding", binding)
	h.want(http.StatusNotFound, "POST", pods+"/absent/binding",
		strings.Replace(binding, `"name":"p"`, `"name":"absent"`, 1))
	h.want(http.StatusOK, "GET", pods+"?fieldSelector=spec.nodeName%3Dm,spec.hostNetwork%3Dfalse", "")
}

// TestEviction checks that an eviction that exceeds the disruption budget gets 429. A permitted eviction gets the
// Status of a create, which kubectl drain expects (SUB-028).
func TestEviction(t *testing.T) {
	h := newHarness(t)
	const (
		eviction = `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p"}}`
		budgets  = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
		merge    = "Content-Type: application/merge-patch+json"
	)
	replacer := strings.NewReplacer(`"name":"p"`, `"name":"p","labels":{"a":"b"}`, `"spec":{`, scheduled)
	h.want(http.StatusCreated, "POST", pods, replacer.Replace(podJSON))
	h.want(http.StatusOK, "PATCH", pods+"/p/status",
		`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`, merge)
	h.want(http.StatusCreated, "POST", budgets,
		`{"metadata":{"name":"b"},"spec":{"selector":{"matchLabels":{"a":"b"}}}}`)
	refused := h.want(http.StatusTooManyRequests, "POST", pods+"/p/eviction", eviction)
	if retry := refused.Header().Get("Retry-After"); retry != "10" ||
		!strings.Contains(refused.Body.String(),
			`"causes":[{"reason":"DisruptionBudget","message":"The disruption budget b is still being processed by `+
				`the server."}]`) {
		t.Errorf("got Retry-After %s, %s, want 10 and the cause DisruptionBudget", retry, refused.Body)
	}
	h.want(http.StatusOK, "PATCH", budgets+"/b/status", `{"status":{"observedGeneration":1,"disruptionsAllowed":1}}`,
		merge)
	const evicted = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}` + "\n"
	if body := h.want(http.StatusCreated, "POST", pods+"/p/eviction", eviction).Body.String(); body != evicted {
		t.Errorf("got %s, want %s", body, evicted)
	}
	h.wantText(http.StatusOK, `"reason":"EvictionByEvictionAPI"`, "GET", pods+"/p", "")
	h.wantText(http.StatusOK, `"deletionTimestamp"`, "GET", pods+"/p", "")
	h.want(http.StatusMethodNotAllowed, "GET", pods+"/p/eviction", "")
}

// TestCreateOnlyResources checks that bindings and reviews have one path, which accepts only POST (SCD-040).
func TestCreateOnlyResources(t *testing.T) {
	h := newHarness(t)
	const bindings = "/api/v1/namespaces/default/bindings"
	h.want(http.StatusCreated, "POST", pods, podJSON)
	h.want(http.StatusCreated, "POST", bindings, `{"metadata":{"name":"p"},"target":{"name":"m"}}`)
	h.wantText(http.StatusOK, `"nodeName":"m"`, "GET", pods+"/p", "")
	for path, code := range map[string]int{
		bindings:                 http.StatusMethodNotAllowed,
		bindings + "/p":          http.StatusNotFound,
		"/api/v1/bindings":       http.StatusNotFound,
		"/api/v1/watch/bindings": http.StatusNotFound,
		"/apis/authentication.k8s.io/v1/tokenreviews":             http.StatusMethodNotAllowed,
		"/apis/authentication.k8s.io/v1/tokenreviews/x":           http.StatusNotFound,
		"/apis/authorization.k8s.io/v1/localsubjectaccessreviews": http.StatusNotFound,
	} {
		h.want(code, "GET", path, "")
	}
	h.want(http.StatusNotFound, "POST", bindings+"/p", `{"metadata":{"name":"p"},"target":{"name":"m"}}`)
}

// TestBindingInTerminatingNamespace checks that a Binding in a terminating namespace is refused.
func TestBindingInTerminatingNamespace(t *testing.T) {
	h := newHarness(t)
	h.want(http.StatusCreated, "POST", "/api/v1/namespaces",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n"}}`)
	h.want(http.StatusCreated, "POST", "/api/v1/namespaces/n/pods", strings.Replace(podJSON, `"default"`, `"n"`, 1))
	h.want(http.StatusOK, "DELETE", "/api/v1/namespaces/n", "")
	h.wantText(http.StatusForbidden, "unable to create new content in namespace n because it is being terminated",
		"POST", "/api/v1/namespaces/n/pods/p/binding",
		`{"apiVersion":"v1","kind":"Binding","metadata":{"name":"p"},"target":{"kind":"Node","name":"m"}}`)
}

// TestGracefulDelete checks that a running Pod gets a grace period. A second delete can shorten it but not extend it.
func TestGracefulDelete(t *testing.T) {
	h := newHarness(t)
	h.want(http.StatusCreated, "POST", pods, strings.Replace(podJSON, `"spec":{`,
		`"spec":{"nodeName":"m","terminationGracePeriodSeconds":7,`, 1))
	for _, c := range []struct{ options, has string }{
		{``, `"deletionGracePeriodSeconds":7`},
		{`{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":60}`, `"deletionGracePeriodSeconds":7`},
		{`{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":2}`, `"deletionGracePeriodSeconds":2`},
	} {
		if body := h.want(http.StatusOK, "DELETE", pods+"/p", c.options).Body.String(); !strings.Contains(body, c.has) {
			t.Errorf("options %s: got %s, want it to contain %s", c.options, body, c.has)
		}
	}
	h.wantText(http.StatusOK, `"kind":"Pod"`, "DELETE", pods+"/p", fmt.Sprintf(zeroGrace, ""))
	h.want(http.StatusNotFound, "GET", pods+"/p", "")
}

// TestPodIPs checks that the field selector status.podIPs is accepted. The server selects Pods as if the field were
// always empty.
func TestPodIPs(t *testing.T) {
	h := newHarness(t)
	h.want(http.StatusCreated, "POST", pods, podJSON)
	h.want(http.StatusOK, "PATCH", pods+"/p/status", `{"status":{"podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}}`,
		"Content-Type: application/merge-patch+json")
	for selector, n := range map[string]int{"status.podIP=10.0.0.1": 1, "status.podIPs=10.0.0.1": 0,
		"status.podIPs=": 1, "status.podIPs!=x": 1} {
		body := h.want(http.StatusOK, "GET", pods+"?fieldSelector="+selector, "").Body
		if items, _ := at(tree(t, body), "items").([]any); len(items) != n {
			t.Errorf("%s: got %d Pods, want %d", selector, len(items), n)
		}
	}
}

// TestScaleOfDeployment checks the Scale of a Deployment. Its selector is a string, and a patch sets the replicas.
func TestScaleOfDeployment(t *testing.T) {
	h := newHarness(t)
	const all = "/apis/apps/v1/namespaces/default/deployments"
	h.want(http.StatusCreated, "POST", all,
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},
"spec":{"selector":{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"c","operator":"Exists"}]},
"template":{"metadata":{"labels":{"a":"b","c":"d"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
	h.wantText(http.StatusOK, `"selector":"a=b,c"`, "GET", all+"/d/scale", "")
	h.wantText(http.StatusOK, `"spec":{"replicas":1}`, "GET", all+"/d/scale", "")
	h.want(http.StatusOK, "PATCH", all+"/d/scale", `{"spec":{"replicas":3}}`,
		"Content-Type: application/merge-patch+json")
	h.wantText(http.StatusOK, `"replicas":3`, "GET", all+"/d", "")
	h.wantText(http.StatusOK, `"generation":2`, "GET", all+"/d", "")
}

// TestLocalReviewOfMissingNamespace checks that a LocalSubjectAccessReview works in a namespace that does not exist.
func TestLocalReviewOfMissingNamespace(t *testing.T) {
	h := newHarness(t)
	review := `{"apiVersion":"authorization.k8s.io/v1","kind":"LocalSubjectAccessReview",` +
		`"metadata":{"namespace":"absent"},"spec":{"user":"u","groups":["system:masters"],` +
		`"resourceAttributes":{"namespace":"absent","verb":"get","resource":"pods"}}}`
	h.wantText(http.StatusCreated, `"allowed":true`, "POST",
		"/apis/authorization.k8s.io/v1/namespaces/absent/localsubjectaccessreviews", review)
}

// TestInvalidScale checks the errors for an invalid Scale of a built-in kind, and for a body that cannot be decoded.
func TestInvalidScale(t *testing.T) {
	h := newHarness(t)
	const all = "/api/v1/namespaces/default/replicationcontrollers"
	created := tree(t, h.want(http.StatusCreated, "POST", all,
		`{"apiVersion":"v1","kind":"ReplicationController","metadata":{"name":"d"},"spec":{"selector":{"a":"b"},
"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`).Body)
	const negative = `Scale.autoscaling "d" is invalid: spec.replicas: Invalid value: -1: must be greater than or ` +
		`equal to 0`
	for _, c := range []struct {
		code               int
		method, body, want string
	}{
		{422, "PUT", `{"metadata":{"name":"d"},"spec":{"replicas":-1}}`, negative},
		{422, "PATCH", `{"spec":{"replicas":-1}}`, negative},
		{409, "PATCH", `{"metadata":{"uid":"x"}}`,
			fmt.Sprintf(`Operation cannot be fulfilled on replicationcontrollers/scale "d": Precondition failed: `+
				`UID in precondition: x, UID in object meta: %s`, at(created, "metadata", "uid"))},
		{500, "PUT", `{"metadata":{"name":"d","resourceVersion":"abc"}}`,
			`strconv.ParseUint: parsing "abc": invalid syntax`},
		{400, "PUT", `{`, `the object provided is unrecognized (must be of type Scale): couldn't get version/kind; ` +
			`json parse error: unexpected end of JSON input ({)`},
		{400, "PUT", `{"kind":1}`, `the object provided is unrecognized (must be of type Scale): couldn't get ` +
			`version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type ` +
			`string ({"kind":1})`},
	} {
		contentType := "application/json"
		if c.method == "PATCH" {
			contentType = "application/merge-patch+json"
		}
		got := message(h.want(c.code, c.method, all+"/d/scale", c.body, "Content-Type: "+contentType))
		if got != c.want {
			t.Errorf("%s %s:\n got %s\nwant %s", c.method, c.body, got, c.want)
		}
	}
	h.want(http.StatusCreated, "POST", pods, podJSON)
	h.wantText(http.StatusBadRequest, "must be of type Binding", "POST", pods+"/p/binding", `{`)
}

// TestScaleAsProtobuf checks that clients can send the Scale of a custom kind as protobuf (SUB-014).
func TestScaleAsProtobuf(t *testing.T) {
	h := newHarness(t)
	h.want(http.StatusCreated, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		strings.Replace(crontabCRD, `"status":{}`,
			`"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}`, 1))
	h.want(http.StatusCreated, "POST", crontabs, crontabA)
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: autoscalingv1.ScaleSpec{Replicas: 5}}
	body, err := resource.AppendProtobuf(nil, "autoscaling/v1", "Scale", scale)
	if err != nil {
		t.Fatal(err)
	}
	h.want(http.StatusOK, "PUT", crontabs+"/a/scale", string(body), "Content-Type: application/vnd.kubernetes.protobuf")
	if n := at(tree(t, h.want(http.StatusOK, "GET", crontabs+"/a", "").Body), "spec", "replicas"); n != 5.0 {
		t.Errorf("got %v replicas, want 5", n)
	}
}
