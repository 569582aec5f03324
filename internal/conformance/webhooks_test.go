package conformance_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// hooks serves the webhooks of both compared servers. The paths of a server's webhooks begin with its name.
type hooks struct {
	*httptest.Server
	mu      sync.Mutex
	reviews map[string][]any // received AdmissionReview requests by server
}

// patches holds the JSON patches of the mutating webhooks by name.
var patches = map[string]string{
	"label": `[{"op":"add","path":"/metadata/labels/by","value":"webhook"}]`,
	"more":  `[{"op":"add","path":"/metadata/labels/more","value":"x"}]`,
	"scale": `[{"op":"replace","path":"/spec/replicas","value":7}]`,
	// The container is inserted before the others. Plugins set the fields that it omits.
	"container": `[{"op":"add","path":"/spec/containers/0","value":{"name":"side","image":"s"}}]`,
}

func (h *hooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review map[string]any
	d := json.NewDecoder(r.Body)
	d.UseNumber()
	if err := d.Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	parts := strings.Split(r.URL.Path, "/") // "", server, webhook
	response := map[string]any{"uid": nested[string](review, "request", "uid"), "allowed": true,
		"auditAnnotations": map[string]any{"seen": "yes"}}
	// The webhooks "look" and "elsewhere" are called concurrently with other webhooks. Their warnings would appear
	// in random order.
	if parts[2] != "look" && parts[2] != "elsewhere" {
		response["warnings"] = []string{"seen by " + parts[2]}
	}
	if strings.HasPrefix(parts[2], "deny") {
		response["allowed"], response["status"] = false, map[string]any{"code": 418, "reason": "Teapot",
			"message": "short and stout"}
	}
	if patch := patches[parts[2]]; patch != "" && nested[any](review, "request", "object") != nil {
		response["patch"], response["patchType"] = []byte(patch), "JSONPatch"
	}
	if nested[string](review, "request", "userInfo", "username") == "kubernetes-admin" {
		h.mu.Lock()
		h.reviews[parts[1]] = append(h.reviews[parts[1]], map[string]any{"webhook": parts[2],
			"at": review["apiVersion"], "query": r.URL.RawQuery, "request": review["request"]})
		h.mu.Unlock()
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": review["apiVersion"], "kind": "AdmissionReview",
		"response": response})
}

// takeReviews returns the reviews that a server's webhooks have received since the last call, sorted by webhook. A
// server calls webhooks of the same type in no fixed order.
func (h *hooks) takeReviews(server string) []any {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := h.reviews[server]
	delete(h.reviews, server)
	for _, review := range seen {
		request := nested[map[string]any](review, "request")
		if nested[string](request, "object", "metadata", "generateName") != "" {
			request["name"] = "(random)"
		}
	}
	slices.SortStableFunc(seen, func(a, b any) int {
		return strings.Compare(nested[string](a, "webhook"), nested[string](b, "webhook"))
	})
	return normalizeValue("", seen).([]any)
}

// configuration returns a configuration with the given webhooks for a server. Each element of webhooks is the name
// of a webhook, a space and its further fields in JSON.
func (h *hooks) configuration(server, kind, name string, webhooks ...string) string {
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: h.Certificate().Raw}))
	var all []string
	for _, w := range webhooks {
		name, rest, _ := strings.Cut(w, " ")
		all = append(all, fmt.Sprintf(`{"name":"%s.example.com","sideEffects":"None","clientConfig":{"url":"%s/%s/%s","caBundle":"%s"},%s}`, name, h.URL, server, name, ca, rest))
	}
	return fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"%s","metadata":{"name":"%s"},"webhooks":[%s]}`, kind, name, strings.Join(all, ","))
}

const (
	everything = `"admissionReviewVersions":["v1"],"rules":[{"operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*/*"]}],` + inHooked
	inHooked   = `"namespaceSelector":{"matchLabels":{"hooked":"yes"}}`
	// others holds the fields of a webhook that uses AdmissionReview v1beta1. Its rules match custom objects at
	// v1beta1 and built-in objects at versions other than that of the request.
	others = `"admissionReviewVersions":["v1beta1"],"timeoutSeconds":7,` + inHooked +
		`,"rules":[{"operations":["*"],"apiGroups":["conformance.example.com"],"apiVersions":["v1beta1"],"resources":["*/*"]},
{"operations":["*"],"apiGroups":["autoscaling"],"apiVersions":["v1"],"resources":["horizontalpodautoscalers"]},{"operations":["*"],"apiGroups":["events.k8s.io"],"apiVersions":["v1"],"resources":["events"]}]`
	scales      = `"admissionReviewVersions":["v1"],"rules":[{"operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*/scale"]}],"objectSelector":{},` + inHooked
	red         = `"admissionReviewVersions":["v1"],"rules":[{"operations":["CREATE","UPDATE"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*"]}],"objectSelector":{"matchLabels":{"red":"yes"}},"reinvocationPolicy":"IfNeeded",` + inHooked
	conditional = `"admissionReviewVersions":["v1"],"rules":[{"operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*"]}],"matchConditions":[{"name":"denied","expression":"has(object.metadata.annotations) && object.metadata.annotations['deny'] == 'yes' && authorizer.group('').resource('pods').check('get').allowed()"}],` + inHooked
)

// testWebhooks checks that both servers send the same reviews to webhooks (VAL-023 VAL-027 DEF-009).
func testWebhooks(t *testing.T, p *pair) {
	h := &hooks{reviews: map[string][]any{}}
	h.Server = httptest.NewTLSServer(h)
	t.Cleanup(h.Close)
	p.do(t, "POST /api/v1/namespaces", "", `{"metadata":{"name":"hooked","labels":{"hooked":"yes"}}}`)
	p.do(t, "POST /api/v1/namespaces/hooked/serviceaccounts", "", `{"metadata":{"name":"default"}}`)
	p.do(t, "POST "+crdPath, asYAML,
		strings.NewReplacer("widgets", "hookeds", "Widget", "Hooked", "wd", "hk").Replace(widgets))
	established := func(a response) bool { return a.code == 200 }
	p.waitFor(t, "/apis/conformance.example.com/v1/namespaces/hooked/hookeds", established)
	for _, s := range []*server{p.trellis, p.upstream} {
		for _, c := range [][2]string{
			{"mutatingwebhookconfigurations", h.configuration(s.name, "MutatingWebhookConfiguration", "b",
				"see "+everything, "label "+red, "scale "+scales)},
			{"mutatingwebhookconfigurations", h.configuration(s.name, "MutatingWebhookConfiguration", "c", "more "+red,
				"others "+others)},
			{"validatingwebhookconfigurations", h.configuration(s.name, "ValidatingWebhookConfiguration", "a",
				"look "+everything, "elsewhere "+others, "deny "+conditional)},
		} {
			r := request{method: "POST", path: "/apis/admissionregistration.k8s.io/v1/" + c[0], body: c[1]}
			if a, err := s.send(t.Context(), r); err != nil || a.code != 201 {
				t.Fatalf("create webhook configuration on %s: got %v (%v), want code 201", s.name, a, err)
			}
		}
	}
	h.waitUntilCalled(t, p)
	defer func() {
		for _, c := range []string{"mutatingwebhookconfigurations/b", "mutatingwebhookconfigurations/c",
			"validatingwebhookconfigurations/a"} {
			p.do(t, "DELETE /apis/admissionregistration.k8s.io/v1/"+c, "", "")
		}
	}()
	for _, r := range webhookRequests() {
		p.upstream.waitForWatchCache(t, r.path)
		if got, want := p.exchange(t, r); !strings.HasSuffix(r.path, "/token") { // tokens differ
			p.check(t, r, got, want)
		}
		got, want := h.takeReviews("trellis"), h.takeReviews("upstream")
		if len(want) == 0 {
			t.Errorf("%s %s: got no call of a webhook by kube-apiserver", r.method, r.path)
		}
		for _, d := range compareValues("reviews", any(got), any(want)) {
			if p.isKnown(r, d) {
				continue
			}
			t.Errorf("%s %s %.300s\n%s", r.method, r.path, r.body, d)
		}
	}
}

// waitUntilCalled blocks until kube-apiserver calls the webhooks of all configurations.
func (h *hooks) waitUntilCalled(t *testing.T, p *pair) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) {
			p.do(t, "POST /api/v1/namespaces/hooked/configmaps?dryRun=All", "",
				`{"metadata":{"name":"probe","labels":{"red":"yes"}}}`)
			got, want := h.takeReviews("trellis"), h.takeReviews("upstream")
			return len(got) == 5 && len(want) == 5, nil
		})
	if err != nil {
		t.Fatal(err)
	}
}

// objectPath matches the path of an object in a namespace of these tests.
var objectPath = regexp.MustCompile(`^/apis?/.*namespaces/(?:hooked|ordered)/[a-z]+/[^/?]+`)

// waitForWatchCache blocks until kube-apiserver's watch cache holds the latest version of the object at path. An
// update starts from the cached object, so a webhook could otherwise be called with an outdated object first.
func (s *server) waitForWatchCache(t *testing.T, path string) {
	t.Helper()
	path = objectPath.FindString(path)
	if path == "" {
		return
	}
	a, err := s.send(t.Context(), request{method: http.MethodGet, path: path})
	if revision := nested[string](a.body, "metadata", "resourceVersion"); err == nil && revision != "" {
		_, err = s.send(t.Context(), request{method: http.MethodGet, path: path + "?resourceVersion=" + revision})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// webhookRequests returns the requests whose reviews are compared.
func webhookRequests() []request {
	const (
		custom  = "/apis/conformance.example.com/v1/namespaces/hooked/hookeds"
		custom2 = "/apis/conformance.example.com/v1beta1/namespaces/hooked/hookeds"
		core    = "/api/v1/namespaces/hooked/"
		deploys = "/apis/apps/v1/namespaces/hooked/deployments"
		hpas    = "/apis/autoscaling/v2/namespaces/hooked/horizontalpodautoscalers"
		pod     = `{"metadata":{"name":"p","labels":{"red":"yes"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`
		deploy  = `{"metadata":{"name":"d","labels":{"red":"yes"}},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`
		scale   = `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"%s","namespace":"hooked"},"spec":{"replicas":3}}`
		apply   = `{"apiVersion":"conformance.example.com/v1","kind":"Hooked","metadata":{"name":"b","labels":{"red":"yes"}},"spec":{"color":"red","size":2}}`
	)
	of := func(line, contentType, body string) request {
		method, path, _ := strings.Cut(line, " ")
		return request{method: method, path: path, contentType: contentType, body: body}
	}
	return []request{
		of("POST "+custom+"?dryRun=All", "",
			`{"apiVersion":"conformance.example.com/v1","kind":"Hooked","metadata":{"name":"a"},"spec":{"color":"red"}}`),
		of("POST "+custom, "", `{"apiVersion":"conformance.example.com/v1","kind":"Hooked","metadata":{"name":"a","labels":{"red":"yes"}},"spec":{"color":"red"}}`),
		of("POST "+custom+"?fieldManager=me", "",
			`{"apiVersion":"conformance.example.com/v1","kind":"Hooked","metadata":{"generateName":"A_"},"spec":{"color":"red"}}`),
		of("POST "+custom, "", `{"apiVersion":"conformance.example.com/v1","kind":"Hooked","metadata":{"generateName":"g-"},"spec":{"color":"red"}}`),
		of("PATCH "+custom+"/a", asMerge, `{"spec":{"size":2},"metadata":{"labels":{"red":"yes"}}}`),
		of("PATCH "+custom2+"/a", asMerge, `{"metadata":{"annotations":{"a":"b"}}}`),
		of("PATCH "+custom+"/a", asMerge, `{"metadata":{"annotations":{"deny":"yes"}}}`),
		of("PATCH "+custom+"/a/status", asMerge, `{"status":{"size":1}}`),
		of("PATCH "+custom+"/a/scale", asMerge, `{"spec":{"replicas":4}}`),
		of("PUT "+custom+"/a/scale", "", fmt.Sprintf(scale, "a")),
		of("PATCH "+custom+"/b?fieldManager=me&force=true", asApply, apply),
		of("PATCH "+custom+"/b?fieldManager=me&force=true&dryRun=All", asApply,
			strings.Replace(apply, "2}}", "3}}", 1)),
		of("PATCH "+custom+"/b?fieldManager=me&force=true", asApply, strings.Replace(apply, "2}}", "3}}", 1)),
		of("DELETE "+custom+"/b?propagationPolicy=Foreground&dryRun=All", "", ""),
		of("DELETE "+custom+"/b", "", `{"apiVersion":"v1","kind":"DeleteOptions","propagationPolicy":"Background"}`),
		of("DELETE "+custom+"?labelSelector=red", "", ""),
		of("POST "+core+"configmaps", "", `{"metadata":{"name":"c","labels":{"red":"yes"}},"data":{"a":"b"}}`),
		of("PUT "+core+"configmaps/c", "", `{"metadata":{"name":"c"},"data":{"a":"c"}}`),
		of("PATCH "+core+"configmaps/c", asStrategic, `{"metadata":{"annotations":{"deny":"yes"}}}`),
		of("DELETE "+core+"configmaps/c?gracePeriodSeconds=3", "", ""),
		of("POST "+core+"pods", "", pod),
		of("PATCH "+core+"pods/p/status", asMerge, `{"status":{"phase":"Pending"}}`),
		of("POST "+core+"pods/p/exec?command=a&command=b&stdin=true&container=c", "", ""), // the Pod has no node yet
		of("GET "+core+"pods/p/attach", "", ""),
		of("GET "+core+"pods/p/attach?tty=true", "", ""),
		of("GET "+core+"pods/p/portforward?ports=80&ports=81", "", ""),
		of("PUT "+core+"pods/http:p:80/proxy/a/b/?c=d", "", ""),
		of("DELETE "+core+"pods/p/proxy", "", ""),
		of("GET "+core+"services/none:80/proxy/a", "", ""),
		of("POST "+core+"pods/p/binding", "", `{"metadata":{"name":"p"},"target":{"kind":"Node","name":"n"}}`),
		of("POST "+core+"pods/p/eviction?dryRun=All", "",
			`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p","namespace":"hooked"}}`),
		of("POST "+core+"pods/p/eviction", "",
			`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p","namespace":"hooked"}}`),
		of("DELETE "+core+"pods/p?gracePeriodSeconds=0", "", ""),
		of("POST "+core+"serviceaccounts", "", `{"metadata":{"name":"s"}}`),
		of("POST "+core+"serviceaccounts/s/token", "",
			`{"spec":{"audiences":["https://kubernetes.default.svc"],"expirationSeconds":600}}`),
		of("POST "+deploys, "", deploy),
		of("PATCH "+deploys+"/d", asMerge, `{"metadata":{"annotations":{"a":"b"}}}`),
		of("PATCH "+deploys+"/d/status", asMerge, `{"status":{"replicas":1}}`),
		of("PUT "+deploys+"/d/scale", "", fmt.Sprintf(scale, "d")),
		of("PATCH "+deploys+"/d/scale", asMerge, `{"spec":{"replicas":5}}`),
		of("DELETE "+deploys, "", ""),
		of("POST "+hpas, "", `{"metadata":{"name":"h"},"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"}}}`),
		of("PATCH "+hpas+"/h", asMerge, `{"spec":{"maxReplicas":4}}`),
		of("DELETE "+hpas+"/h", "", ""),
		of("POST "+core+"events", "", `{"metadata":{"name":"e","namespace":"hooked"},"involvedObject":{"kind":"Pod","name":"p","namespace":"hooked"},"reason":"R","type":"Normal","source":{"component":"c"}}`),
		of("POST "+core+"services", "", `{"metadata":{"name":"s","labels":{"red":"yes"}},"spec":{"ports":[{"port":80}]}}`),
		of("DELETE "+core+"services/s", "", ""),
		of("PATCH /api/v1/namespaces/hooked", asMerge, `{"metadata":{"annotations":{"a":"b"}}}`),
		of("POST /api/v1/namespaces", "", `{"metadata":{"name":"hooked2","labels":{"hooked":"yes"}}}`),
		of("PUT /api/v1/namespaces/hooked2/finalize", "",
			`{"metadata":{"name":"hooked2","labels":{"hooked":"yes"}},"spec":{"finalizers":["kubernetes"]}}`),
	}
}
