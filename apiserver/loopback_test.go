package apiserver_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/conversionwebhook"
)

// review responds to an AdmissionReview. It rejects objects with the name bad. The response contains the user of the
// request.
func (e *aggregatedServer) review(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	caller := "called by " + r.Header.Get("X-Remote-User") + " of " + strings.Join(r.Header["X-Remote-Group"], ",")
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: review.Request.Name != "bad",
		Warnings: []string{caller}, Result: &metav1.Status{Message: caller}}
	review.Request = nil
	_ = json.NewEncoder(w).Encode(review)
}

// convert responds to a ConversionReview of Hosts. It writes the user of the request into the converted objects.
func (e *aggregatedServer) convert(w http.ResponseWriter, r *http.Request) {
	h := conversionwebhook.Handler{Kinds: map[schema.GroupKind]conversionwebhook.Func{
		{Group: "example.com", Kind: "Host"}: func(o *unstructured.Unstructured, _ string) (*unstructured.Unstructured,
			error) {
			o.Object["by"] = r.Header.Get("X-Remote-User")
			return o, nil
		},
	}}
	h.ServeHTTP(w, r)
}

// startWithWebhooks starts a server and an aggregated API server of group a.example.com that serves reviews and
// conversions.
func startWithWebhooks(t *testing.T) *apiserver.Server {
	dir := t.TempDir()
	s := start(t, apiserver.Config{DataDir: dir, LocalServices: []string{"default/server"}})
	e := newAggregatedServer(t, "a.example.com", []byte(read(t, filepath.Join(dir, "pki", "front-proxy-ca.crt"))),
		"X-Remote-User")
	e.register(t, s)
	return s
}

const loopbackWebhook = `{"metadata":{"name":"guard"},"webhooks":[{"name":"guard.example.com","sideEffects":"None","admissionReviewVersions":["v1"],
	"clientConfig":{"service":{"namespace":"default","name":"kubernetes","path":%q}},"timeoutSeconds":30,
	"rules":[{"operations":["*"],"apiGroups":[""],"apiVersions":["v1"],"resources":[%q]}]}]}`

const validatingConfigs = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

// TestWebhookOfAnAggregatedAPI checks that an aggregated API server can serve an admission webhook through the Service
// kubernetes, as with kube-apiserver. The user of the AdmissionReview request is this server.
func TestWebhookOfAnAggregatedAPI(t *testing.T) {
	s := startWithWebhooks(t)
	post := func(path, text string) (*http.Response, error) {
		return client(t, s).Post(s.URL()+path, "application/json", strings.NewReader(text))
	}
	resp, err := post(validatingConfigs, fmt.Sprintf(loopbackWebhook, "/apis/a.example.com/v1/reviews", "configmaps"))
	body(t, resp, err, http.StatusCreated)
	const caller = "called by system:apiserver of system:masters,system:authenticated"
	resp, err = post("/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"good"}}`)
	body(t, resp, err, http.StatusCreated)
	if got := resp.Header.Get("Warning"); !strings.Contains(got, caller) {
		t.Errorf("Warning: %s", got)
	}
	resp, err = post("/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"bad"}}`)
	if got := body(t, resp, err, http.StatusBadRequest); !strings.Contains(got,
		`admission webhook \"guard.example.com\" denied the request: `+caller) {
		t.Error(got)
	}
}

// TestConversionByAnAggregatedAPI checks that an aggregated API server can serve a conversion webhook through the
// Service kubernetes.
func TestConversionByAnAggregatedAPI(t *testing.T) {
	s := startWithWebhooks(t)
	crd := strings.NewReplacer(`"caBundle":%q,`, "", `"name":"hook","port":%d`,
		`"name":"kubernetes","path":"/apis/a.example.com/v1/conversions"`, `"integer"`, `"string"`).Replace(hostCRD)
	for _, o := range [][2]string{
		{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd},
		{"/apis/example.com/v1/namespaces/default/hosts",
			`{"apiVersion":"example.com/v1","kind":"Host","metadata":{"name":"h"}}`},
	} {
		resp, err := client(t, s).Post(s.URL()+o[0], "application/json", strings.NewReader(o[1]))
		body(t, resp, err, http.StatusCreated)
	}
	resp, err := client(t, s).Get(s.URL() + "/apis/example.com/v2/namespaces/default/hosts/h")
	if got := body(t, resp, err, http.StatusOK); !strings.Contains(got, `"by":"system:apiserver"`) {
		t.Error(got)
	}
}

// TestWebhookThatCallsItself checks a webhook that sends requests which match its own rules. Its call fails long
// before its timeout.
func TestWebhookThatCallsItself(t *testing.T) {
	s := start(t, apiserver.Config{})
	const path = "/api/v1/namespaces/default/services/server/proxy/reviews"
	for _, o := range [][2]string{
		{"/api/v1/namespaces/default/services",
			`{"metadata":{"name":"server"},"spec":{"clusterIP":"None","ports":[{"port":443}]}}`},
		{validatingConfigs, fmt.Sprintf(loopbackWebhook, path, "services/proxy")},
	} {
		resp, err := client(t, s).Post(s.URL()+o[0], "application/json", strings.NewReader(o[1]))
		body(t, resp, err, http.StatusCreated)
	}
	resp, err := client(t, s).Get(s.URL() + path)
	if got := body(t, resp, err, http.StatusInternalServerError); !strings.Contains(got,
		"call each other, 3 levels deep") {
		t.Error(got)
	}
}
