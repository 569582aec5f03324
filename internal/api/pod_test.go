package api

import (
	"net/http"
	"strings"
	"testing"
)

const aPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"default"},"spec":{"containers":[{"name":"c","image":"i"}]}}`

// SCD-040: a scheduler gives a Pod its node once, and not while it is being deleted; other writes cannot.
func TestBinding(t *testing.T) {
	h := newHarness(t)
	const binding = `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"p","annotations":{"a":"b"}},"target":{"kind":"Node","name":"m"}}`
	h.want(http.StatusCreated, "POST", pods, aPod)
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

// Nothing is bound in a namespace that is on its way out.
func TestBindingInATerminatingNamespace(t *testing.T) {
	h := newHarness(t)
	h.want(http.StatusCreated, "POST", "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n"}}`)
	h.want(http.StatusCreated, "POST", "/api/v1/namespaces/n/pods", strings.Replace(aPod, `"default"`, `"n"`, 1))
	h.want(http.StatusOK, "DELETE", "/api/v1/namespaces/n", "")
	body := h.want(http.StatusForbidden, "POST", "/api/v1/namespaces/n/pods/p/binding", `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"p"},"target":{"kind":"Node","name":"m"}}`).Body.String()
	if !strings.Contains(body, "unable to create new content in namespace n because it is being terminated") {
		t.Error(body)
	}
}

// A Pod that runs is given time to end, and a second delete cannot make that longer.
func TestGracefulDelete(t *testing.T) {
	h := newHarness(t)
	h.want(http.StatusCreated, "POST", pods, strings.Replace(aPod, `"spec":{`, `"spec":{"nodeName":"m","terminationGracePeriodSeconds":7,`, 1))
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
	h.want(http.StatusCreated, "POST", pods, aPod)
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
func TestLocalReviewOfAnAbsentNamespace(t *testing.T) {
	h := newHarness(t)
	review := `{"apiVersion":"authorization.k8s.io/v1","kind":"LocalSubjectAccessReview","metadata":{"namespace":"absent"},"spec":{"user":"u","groups":["system:masters"],"resourceAttributes":{"namespace":"absent","verb":"get","resource":"pods"}}}`
	if body := h.want(http.StatusCreated, "POST", "/apis/authorization.k8s.io/v1/namespaces/absent/localsubjectaccessreviews", review).Body.String(); !strings.Contains(body, `"allowed":true`) {
		t.Error(body)
	}
}
