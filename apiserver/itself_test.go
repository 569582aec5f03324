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

// review answers an AdmissionReview: nothing may be called bad. It says who asks.
func (e *extension) review(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	asks := "asked by " + r.Header.Get("X-Remote-User") + " of " + strings.Join(r.Header["X-Remote-Group"], ",")
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: review.Request.Name != "bad", Warnings: []string{asks}, Result: &metav1.Status{Message: asks}}
	review.Request = nil
	_ = json.NewEncoder(w).Encode(review)
}

// convert answers a ConversionReview of Hosts: who asks is written into them.
func (e *extension) convert(w http.ResponseWriter, r *http.Request) {
	h := conversionwebhook.Handler{Kinds: map[schema.GroupKind]conversionwebhook.Func{
		{Group: "example.com", Kind: "Host"}: func(o *unstructured.Unstructured, _ string) (*unstructured.Unstructured, error) {
			o.Object["by"] = r.Header.Get("X-Remote-User")
			return o, nil
		},
	}}
	h.ServeHTTP(w, r)
}

// reviewed starts a server with an API server of group a.example.com that reviews and converts.
func reviewed(t *testing.T) *apiserver.Server {
	dir := t.TempDir()
	s := start(t, apiserver.Config{DataDir: dir, LocalServices: []string{"default/server"}})
	e := newExtension(t, "a.example.com", []byte(read(t, filepath.Join(dir, "pki", "front-proxy-ca.crt"))), "X-Remote-User")
	e.register(t, s)
	return s
}

const guardAtTheAPI = `{"metadata":{"name":"guard"},"webhooks":[{"name":"guard.example.com","sideEffects":"None","admissionReviewVersions":["v1"],
	"clientConfig":{"service":{"namespace":"default","name":"kubernetes","path":%q}},"timeoutSeconds":30,
	"rules":[{"operations":["*"],"apiGroups":[""],"apiVersions":["v1"],"resources":[%q]}]}]}`

const guards = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

// An API server that is known to this one by an APIService has AdmissionReviews sent to it by way of the Service kubernetes,
// as kube-apiserver does. It is told that this server asks.
func TestWebhookOfAnAggregatedAPI(t *testing.T) {
	s := reviewed(t)
	post := func(path, text string) (*http.Response, error) {
		return client(t, s).Post(s.URL()+path, "application/json", strings.NewReader(text))
	}
	resp, err := post(guards, fmt.Sprintf(guardAtTheAPI, "/apis/a.example.com/v1/reviews", "configmaps"))
	body(t, resp, err, http.StatusCreated)
	const asks = "asked by system:apiserver of system:masters,system:authenticated"
	resp, err = post("/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"good"}}`)
	body(t, resp, err, http.StatusCreated)
	if got := resp.Header.Get("Warning"); !strings.Contains(got, asks) {
		t.Errorf("Warning: %s", got)
	}
	resp, err = post("/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"bad"}}`)
	if got := body(t, resp, err, http.StatusBadRequest); !strings.Contains(got, `admission webhook \"guard.example.com\" denied the request: `+asks) {
		t.Error(got)
	}
}

// So it is for ConversionReviews.
func TestConversionByAnAggregatedAPI(t *testing.T) {
	s := reviewed(t)
	crd := strings.NewReplacer(`"caBundle":%q,`, "", `"name":"hook","port":%d`, `"name":"kubernetes","path":"/apis/a.example.com/v1/conversions"`, `"integer"`, `"string"`).Replace(hostCRD)
	for _, o := range [][2]string{
		{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd},
		{"/apis/example.com/v1/namespaces/default/hosts", `{"apiVersion":"example.com/v1","kind":"Host","metadata":{"name":"h"}}`},
	} {
		resp, err := client(t, s).Post(s.URL()+o[0], "application/json", strings.NewReader(o[1]))
		body(t, resp, err, http.StatusCreated)
	}
	resp, err := client(t, s).Get(s.URL() + "/apis/example.com/v2/namespaces/default/hosts/h")
	if got := body(t, resp, err, http.StatusOK); !strings.Contains(got, `"by":"system:apiserver"`) {
		t.Error(got)
	}
}

// A webhook that is asked about its own calls ends long before its time does.
func TestWebhookThatLeadsToItself(t *testing.T) {
	s := start(t, apiserver.Config{})
	const to = "/api/v1/namespaces/default/services/server/proxy/reviews"
	for _, o := range [][2]string{
		{"/api/v1/namespaces/default/services", `{"metadata":{"name":"server"},"spec":{"clusterIP":"None","ports":[{"port":443}]}}`},
		{guards, fmt.Sprintf(guardAtTheAPI, to, "services/proxy")},
	} {
		resp, err := client(t, s).Post(s.URL()+o[0], "application/json", strings.NewReader(o[1]))
		body(t, resp, err, http.StatusCreated)
	}
	resp, err := client(t, s).Get(s.URL() + to)
	if got := body(t, resp, err, http.StatusInternalServerError); !strings.Contains(got, "lead to each other, 3 deep") {
		t.Error(got)
	}
}
