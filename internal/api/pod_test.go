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

const podJSON = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"default"},"spec":{"containers":[{"name":"c","image":"i"}]}}`

// SCD-040: a scheduler gives a Pod its node once, and not while it is being deleted; other writes cannot.
func TestBinding(t *testing.T) {
	h := newHarness(t)
	const binding = `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"p","annotations":{"a":"b"}},"target":{"kind":"Node","name":"m"}}`
	h.want(http.StatusCreated, "POST", pods, podJSON)
	h.want(http.StatusUnprocessableEntity, "PATCH", pods+"/p", `{"spec":{"nodeName":"m"}}`, "Content-Type: application/merge-patch+json")
	if body := h.want(http.StatusBadRequest, "POST", pods+"/p/binding", strings.Replace(binding, `"name":"p"`, `"name":"q"`, 1)).Body.String(); !strings.Contains(body, "name in URL does not match name in Binding object") {
		t.Error(body)
	}
	versioned := strings.Replace(binding, `"name":"p"`, `"name":"p","resourceVersion":"abc"`, 1)
	if body := h.want(http.StatusConflict, "POST", pods+"/p/binding", versioned).Body.String(); !strings.Contains(body, "ResourceVersion in precondition: abc") {
		t.Error(body)
	}
	if body := h.want(http.StatusInternalServerError, "POST", pods+"/p/binding", strings.Replace(binding, `"Node"`, `"Pod"`, 1)).Body.String(); !strings.Contains(body, `target.kind`) {
		t.Error(body)
	}
	if body := h.want(http.StatusCreated, "POST", pods+"/p/binding", binding).Body.String(); !strings.Contains(body, `"status":"Success"`) {
		t.Error(body)
	}
	bound := h.want(http.StatusOK, "GET", pods+"/p", "").Body.String()
	for _, has := range []string{`"nodeName":"m"`, `"a":"b"`, `"type":"PodScheduled"`} {
		if !strings.Contains(bound, has) {
			t.Errorf("no %s in %s", has, bound)
		}
	}
	if body := h.want(http.StatusConflict, "POST", pods+"/p/binding", binding).Body.String(); !strings.Contains(body, `pod p is already assigned to node \"m\"`) {
		t.Error(body)
	}
	h.want(http.StatusNotFound, "POST", pods+"/absent/binding", strings.Replace(binding, `"name":"p"`, `"name":"absent"`, 1))
	h.want(http.StatusOK, "GET", pods+"?fieldSelector=spec.nodeName%3Dm,spec.hostNetwork%3Dfalse", "")
}

// SUB-028: an eviction beyond the budget gets 429, one within it the Status of a creation; kubectl drain asks for no more.
func TestEviction(t *testing.T) {
	h := newHarness(t)
	const (
		eviction = `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p"}}`
		budgets  = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
		merge    = "Content-Type: application/merge-patch+json"
	)
	h.want(http.StatusCreated, "POST", pods, strings.NewReplacer(`"name":"p"`, `"name":"p","labels":{"a":"b"}`, `"spec":{`, `"spec":{"nodeName":"m",`).Replace(podJSON))
	h.want(http.StatusOK, "PATCH", pods+"/p/status", `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`, merge)
	h.want(http.StatusCreated, "POST", budgets, `{"metadata":{"name":"b"},"spec":{"selector":{"matchLabels":{"a":"b"}}}}`)
	refused := h.want(http.StatusTooManyRequests, "POST", pods+"/p/eviction", eviction)
	if retry := refused.Header().Get("Retry-After"); retry != "10" || !strings.Contains(refused.Body.String(), `"causes":[{"reason":"DisruptionBudget","message":"The disruption budget b is still being processed by the server."}]`) {
		t.Errorf("%s %s", retry, refused.Body)
	}
	h.want(http.StatusOK, "PATCH", budgets+"/b/status", `{"status":{"observedGeneration":1,"disruptionsAllowed":1}}`, merge)
	if body := h.want(http.StatusCreated, "POST", pods+"/p/eviction", eviction).Body.String(); body != `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}`+"\n" {
		t.Error(body)
	}
	if body := h.want(http.StatusOK, "GET", pods+"/p", "").Body.String(); !strings.Contains(body, `"reason":"EvictionByEvictionAPI"`) || !strings.Contains(body, `"deletionTimestamp"`) {
		t.Error(body)
	}
	h.want(http.StatusMethodNotAllowed, "GET", pods+"/p/eviction", "")
}

// SCD-040: there is one path to bindings, and all that it takes is a POST; so it is with reviews.
func TestCreateOnlyResources(t *testing.T) {
	h := newHarness(t)
	const bindings = "/api/v1/namespaces/default/bindings"
	h.want(http.StatusCreated, "POST", pods, podJSON)
	h.want(http.StatusCreated, "POST", bindings, `{"metadata":{"name":"p"},"target":{"name":"m"}}`)
	if body := h.want(http.StatusOK, "GET", pods+"/p", "").Body.String(); !strings.Contains(body, `"nodeName":"m"`) {
		t.Error(body)
	}
	for path, code := range map[string]int{
		bindings: http.StatusMethodNotAllowed, bindings + "/p": http.StatusNotFound, "/api/v1/bindings": http.StatusNotFound, "/api/v1/watch/bindings": http.StatusNotFound,
		"/apis/authentication.k8s.io/v1/tokenreviews": http.StatusMethodNotAllowed, "/apis/authentication.k8s.io/v1/tokenreviews/x": http.StatusNotFound,
		"/apis/authorization.k8s.io/v1/localsubjectaccessreviews": http.StatusNotFound,
	} {
		h.want(code, "GET", path, "")
	}
	h.want(http.StatusNotFound, "POST", bindings+"/p", `{"metadata":{"name":"p"},"target":{"name":"m"}}`)
}

// Nothing is bound in a namespace that is on its way out.
func TestBindingInTerminatingNamespace(t *testing.T) {
	h := newHarness(t)
	h.want(http.StatusCreated, "POST", "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n"}}`)
	h.want(http.StatusCreated, "POST", "/api/v1/namespaces/n/pods", strings.Replace(podJSON, `"default"`, `"n"`, 1))
	h.want(http.StatusOK, "DELETE", "/api/v1/namespaces/n", "")
	body := h.want(http.StatusForbidden, "POST", "/api/v1/namespaces/n/pods/p/binding", `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"p"},"target":{"kind":"Node","name":"m"}}`).Body.String()
	if !strings.Contains(body, "unable to create new content in namespace n because it is being terminated") {
		t.Error(body)
	}
}

// A Pod that runs is given time to end, and a second delete cannot make that longer.
func TestGracefulDelete(t *testing.T) {
	h := newHarness(t)
	h.want(http.StatusCreated, "POST", pods, strings.Replace(podJSON, `"spec":{`, `"spec":{"nodeName":"m","terminationGracePeriodSeconds":7,`, 1))
	for _, c := range []struct{ options, has string }{
		{``, `"deletionGracePeriodSeconds":7`},
		{`{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":60}`, `"deletionGracePeriodSeconds":7`},
		{`{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":2}`, `"deletionGracePeriodSeconds":2`},
	} {
		if body := h.want(http.StatusOK, "DELETE", pods+"/p", c.options).Body.String(); !strings.Contains(body, c.has) {
			t.Errorf("%s: no %s in %s", c.options, c.has, body)
		}
	}
	if body := h.want(http.StatusOK, "DELETE", pods+"/p", `{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0}`).Body.String(); !strings.Contains(body, `"kind":"Pod"`) {
		t.Errorf("answered with %s", body)
	}
	h.want(http.StatusNotFound, "GET", pods+"/p", "")
}

// Pods can be selected by podIPs, which none is then said to have.
func TestPodIPs(t *testing.T) {
	h := newHarness(t)
	h.want(http.StatusCreated, "POST", pods, podJSON)
	h.want(http.StatusOK, "PATCH", pods+"/p/status", `{"status":{"podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}}`, "Content-Type: application/merge-patch+json")
	for selector, n := range map[string]int{"status.podIP=10.0.0.1": 1, "status.podIPs=10.0.0.1": 0, "status.podIPs=": 1, "status.podIPs!=x": 1} {
		body := h.want(http.StatusOK, "GET", pods+"?fieldSelector="+selector, "").Body
		if items, _ := at(tree(t, body), "items").([]any); len(items) != n {
			t.Errorf("%s: %d, want %d", selector, len(items), n)
		}
	}
}

// What runs replicas is scaled, and its selector is told as text.
func TestScaleOfDeployment(t *testing.T) {
	h := newHarness(t)
	const all = "/apis/apps/v1/namespaces/default/deployments"
	h.want(http.StatusCreated, "POST", all, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"c","operator":"Exists"}]},
"template":{"metadata":{"labels":{"a":"b","c":"d"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
	if body := h.want(http.StatusOK, "GET", all+"/d/scale", "").Body.String(); !strings.Contains(body, `"selector":"a=b,c"`) || !strings.Contains(body, `"spec":{"replicas":1}`) {
		t.Error(body)
	}
	h.want(http.StatusOK, "PATCH", all+"/d/scale", `{"spec":{"replicas":3}}`, "Content-Type: application/merge-patch+json")
	if body := h.want(http.StatusOK, "GET", all+"/d", "").Body.String(); !strings.Contains(body, `"replicas":3`) || !strings.Contains(body, `"generation":2`) {
		t.Error(body)
	}
}

// Whether somebody may do something can be asked of a namespace that is not there.
func TestLocalReviewOfMissingNamespace(t *testing.T) {
	h := newHarness(t)
	review := `{"apiVersion":"authorization.k8s.io/v1","kind":"LocalSubjectAccessReview","metadata":{"namespace":"absent"},"spec":{"user":"u","groups":["system:masters"],"resourceAttributes":{"namespace":"absent","verb":"get","resource":"pods"}}}`
	if body := h.want(http.StatusCreated, "POST", "/apis/authorization.k8s.io/v1/namespaces/absent/localsubjectaccessreviews", review).Body.String(); !strings.Contains(body, `"allowed":true`) {
		t.Error(body)
	}
}

// The Scale of a built-in kind is judged as one, and so is what cannot even be read as one.
func TestInvalidScale(t *testing.T) {
	h := newHarness(t)
	const all = "/api/v1/namespaces/default/replicationcontrollers"
	made := tree(t, h.want(http.StatusCreated, "POST", all, `{"apiVersion":"v1","kind":"ReplicationController","metadata":{"name":"d"},"spec":{"selector":{"a":"b"},
"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`).Body)
	const negative = `Scale.autoscaling "d" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0`
	for _, c := range []struct {
		code               int
		method, body, says string
	}{
		{422, "PUT", `{"metadata":{"name":"d"},"spec":{"replicas":-1}}`, negative},
		{422, "PATCH", `{"spec":{"replicas":-1}}`, negative},
		{409, "PATCH", `{"metadata":{"uid":"x"}}`, fmt.Sprintf(`Operation cannot be fulfilled on replicationcontrollers/scale "d": Precondition failed: UID in precondition: x, UID in object meta: %s`, at(made, "metadata", "uid"))},
		{500, "PUT", `{"metadata":{"name":"d","resourceVersion":"abc"}}`, `strconv.ParseUint: parsing "abc": invalid syntax`},
		{400, "PUT", `{`, `the object provided is unrecognized (must be of type Scale): couldn't get version/kind; json parse error: unexpected end of JSON input ({)`},
		{400, "PUT", `{"kind":1}`, `the object provided is unrecognized (must be of type Scale): couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string ({"kind":1})`},
	} {
		contentType := "application/json"
		if c.method == "PATCH" {
			contentType = "application/merge-patch+json"
		}
		if says := tree(t, h.want(c.code, c.method, all+"/d/scale", c.body, "Content-Type: "+contentType).Body)["message"]; says != c.says {
			t.Errorf("%s %s:\ngot  %s\nwant %s", c.method, c.body, says, c.says)
		}
	}
	h.want(http.StatusCreated, "POST", pods, podJSON)
	if body := h.want(http.StatusBadRequest, "POST", pods+"/p/binding", `{`).Body.String(); !strings.Contains(body, "must be of type Binding") {
		t.Error(body)
	}
}

// SUB-014: a Scale can be sent as protobuf, of any kind.
func TestScaleAsProtobuf(t *testing.T) {
	h := newHarness(t)
	h.want(http.StatusCreated, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", strings.Replace(crontabCRD, `"status":{}`, `"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}`, 1))
	h.want(http.StatusCreated, "POST", crontabs, crontabA)
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: autoscalingv1.ScaleSpec{Replicas: 5}}
	body, err := resource.AppendProtobuf(nil, "autoscaling/v1", "Scale", scale)
	if err != nil {
		t.Fatal(err)
	}
	h.want(http.StatusOK, "PUT", crontabs+"/a/scale", string(body), "Content-Type: application/vnd.kubernetes.protobuf")
	if n := at(tree(t, h.want(http.StatusOK, "GET", crontabs+"/a", "").Body), "spec", "replicas"); n != 5.0 {
		t.Errorf("%v replicas", n)
	}
}
