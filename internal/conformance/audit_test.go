package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trellis-k8s/trellis/testserver"
)

const (
	secrets      = "/api/v1/namespaces/conformance/secrets"
	auditWidgets = "/apis/audit.example.com/v1/namespaces/conformance/widgets"

	auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: None, nonResourceURLs: ["/healthz*"]}
- {level: None, users: [jane], verbs: [delete]}
- {level: None, resources: [{group: "", resources: [namespaces/finalize]}]}
- {level: Metadata, omitStages: [RequestReceived], resources: [{group: "", resources: [secrets]}]}
- {level: Request, resources: [{group: "", resources: ["serviceaccounts/token", configmaps], resourceNames: [request]}]}
- {level: RequestResponse, omitManagedFields: true, namespaces: [lean]}
- {level: RequestResponse}
`
	auditCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.audit.example.com"},"spec":{"group":"audit.example.com","scope":"Namespaced",
"names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}},
"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"replicas":{"type":"integer","default":3}}},"status":{"type":"object","properties":{"replicas":{"type":"integer"}}}}}}},
{"name":"v1beta1","served":true,"storage":false,"deprecated":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`
)

// asViewer impersonates a user whose role allows reading ConfigMaps.
var asViewer = http.Header{"Impersonate-User": {"viewer"}}

// auditRequests are the audited requests. They are sent one after the other.
var auditRequests = []request{
	{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"lean"}}`},
	{method: "POST", path: configMaps, body: `{"metadata":{"name":"a","labels":{"x":"y"}},"data":{"k":"v"}}`},
	{method: "POST", path: configMaps, body: `{"metadata":{"name":"a"}}`},
	{method: "POST", path: configMaps, body: `{"metadata":{"generateName":"g-"}}`},
	{method: "POST", path: configMaps, body: `{"metadata":{`},
	{method: "POST", path: configMaps, body: "metadata: {name: y}\n", contentType: asYAML, accept: asYAML},
	{method: "PUT", path: configMaps + "/a", body: `{"metadata":{"name":"a","resourceVersion":"1"}}`},
	{method: "PUT", path: configMaps + "/a", body: `{"metadata":{"name":"a"},"data":{"k":"w"}}`},
	{method: "PATCH", path: configMaps + "/a", body: `{"data":{"k":"x"}}`, contentType: asMerge},
	{method: "PATCH", path: configMaps + "/a", body: `[{"op":"add","path":"/data/j","value":"z"}]`,
		contentType: asJSONPatch},
	{method: "PATCH", path: configMaps + "/a", body: `{"data":`, contentType: asMerge},
	{method: "PATCH", path: configMaps + "/applied?fieldManager=me",
		body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied}\ndata: {a: b}\n", contentType: asApply},
	{method: "POST", path: "/api/v1/namespaces/lean/configmaps",
		body: `{"metadata":{"name":"a","managedFields":[]},"data":{"k":"v"}}`},
	{method: "GET", path: "/api/v1/namespaces/lean/configmaps/a"},
	{method: "GET", path: "/api/v1/namespaces/lean/configmaps?labelSelector=!kube"},
	{method: "GET", path: "/api/v1/namespaces/lean/configmaps/a", accept: asTable},
	{method: "GET", path: configMaps + "/a"},
	{method: "GET", path: configMaps + "/a?pretty=true"},
	{method: "GET", path: configMaps + "/a", accept: "application/vnd.kubernetes.protobuf"},
	{method: "GET", path: configMaps + "/none"},
	{method: "GET", path: configMaps + "?labelSelector=x"},
	{method: "GET", path: configMaps + "?labelSelector=x", accept: asTable},
	{method: "GET", path: configMaps + "?labelSelector=x", accept: "application/vnd.kubernetes.protobuf"},
	{method: "GET", path: configMaps + "?labelSelector=x",
		accept: "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"},
	{method: "GET", path: configMaps + "?limit=x"},
	{method: "GET", path: configMaps, accept: "text/x"},
	{method: "GET", path: configMaps + "?watch=1&timeoutSeconds=1&fieldSelector=metadata.name=a"},
	{method: "GET", path: configMaps + "?watch=1&resourceVersion=x"},
	{method: "GET", path: configMaps + "?timeout=x"},
	{method: "GET", path: configMaps + "/request"},
	{method: "POST", path: secrets, body: `{"metadata":{"name":"s"},"data":{"k":"dg=="}}`},
	{method: "GET", path: secrets + "/s"},
	{method: "PUT", path: secrets + "/s", body: `{"metadata":{"name":"s","uid":"{uid}","resourceVersion":"{rv}"}}`},
	{method: "GET", path: secrets, header: http.Header{"Impersonate-User": {"jane"}, "Impersonate-Group": {"dev"},
		"Impersonate-Extra-A": {"b"}}},
	{method: "DELETE", path: secrets + "/none"},
	{method: "DELETE", path: configMaps + "/a", header: http.Header{"Impersonate-User": {"jane"}}},
	{method: "DELETE", path: configMaps + "/a",
		body: `{"apiVersion":"v1","kind":"DeleteOptions","propagationPolicy":"Background"}`},
	{method: "DELETE", path: configMaps + "?labelSelector=none",
		body: `{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}`},
	{method: "POST", path: "/api/v1/namespaces/conformance/serviceaccounts", body: `{"metadata":{"name":"sa"}}`},
	{method: "POST", path: "/api/v1/namespaces/conformance/serviceaccounts/sa/token",
		body: `{"spec":{"audiences":["a"]}}`},
	{method: "GET", path: configMaps + "/applied", header: asViewer},
	{method: "POST", path: "/api/v1/namespaces/conformance/replicationcontrollers",
		body: `{"metadata":{"name":"rc"},"spec":{"replicas":0,"selector":{"a":"b"},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`},
	{method: "PUT", path: "/api/v1/namespaces/conformance/replicationcontrollers/rc/scale",
		body: `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"rc","namespace":"conformance"},"spec":{"replicas":1}}`},
	{method: "POST", path: "/api/v1/namespaces/conformance/pods",
		body: `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}],"automountServiceAccountToken":false}}`},
	{method: "GET", path: "/api/v1/namespaces/conformance/pods/p/log?container=c"},
	{method: "GET", path: "/api/v1/namespaces/conformance/pods/p/log?container=none"},
	{method: "POST", path: "/api/v1/namespaces/conformance/pods/p/exec?command=x"},
	{method: "GET", path: "/api/v1/namespaces/conformance/pods/p/attach",
		header: http.Header{"Impersonate-User": {"jane"}}},
	{method: "PUT", path: "/api/v1/namespaces/conformance/pods/http:p:80/proxy/x/y?a=b"},
	{method: "GET", path: "/api/v1/nodes/none/proxy/x"},
	{method: "POST", path: "/api/v1/namespaces/conformance/pods/p/binding",
		body: `{"target":{"kind":"Node","name":"n"}}`},
	{method: "POST", path: "/api/v1/namespaces/conformance/pods/p/eviction",
		body: `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p","namespace":"conformance"},"deleteOptions":{"gracePeriodSeconds":0}}`},
	{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		body: `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`},
	{method: "POST", path: auditWidgets,
		body: `{"apiVersion":"audit.example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{},"more":1}`},
	{method: "PUT", path: auditWidgets + "/w/scale",
		body: `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"w","namespace":"conformance"},"spec":{"replicas":1}}`},
	{method: "GET", path: strings.Replace(auditWidgets, "/v1/", "/v1beta1/", 1) + "/w"},
	{method: "GET", path: strings.Replace(auditWidgets, "/v1/", "/v1beta1/", 1)},
	{method: "GET", path: auditWidgets, accept: asTable},
	{method: "DELETE", path: auditWidgets + "/w"},
	{method: "GET", path: "/apis/none.example.com/v1/things"},
	{method: "GET", path: "/version"},
	{method: "GET", path: "/apis/apps/v1"},
	{method: "GET", path: "/apis/batch", accept: "application/yaml"},
	{method: "GET", path: "/apis/batch/v1", accept: "application/vnd.kubernetes.protobuf"},
	{method: "GET", path: "/api", accept: "application/json"},
	{method: "GET", path: "/apis/none.example.com"},
	{method: "GET", path: "/apis/none.example.com/v1"},
	{method: "GET", path: "/healthz"},
	{method: "GET", path: "/none"},
	{method: "GET", path: "/none", anonymous: true},
	{method: "GET", path: configMaps, anonymous: true, header: http.Header{"Authorization": {"Bearer unknown"}}},
	{method: "GET", path: configMaps, anonymous: true},
}

// TestAudit checks that both servers write the same audit events for each request, at each audit level. Timestamps
// are not compared.
func TestAudit(t *testing.T) {
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	trellisLog, upstreamLog := filepath.Join(dir, "trellis"), filepath.Join(dir, "upstream")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	upstream := startKubeAPIServer(t, "--service-cluster-ip-range=10.0.0.0/24", "--audit-policy-file="+policy,
		"--audit-log-path="+upstreamLog, "--disable-admission-plugins=ServiceAccount")
	p := &pair{trellis: newServer(t, "trellis", testserver.Start(t, testserver.Audit(trellisLog, auditPolicy)).Config),
		upstream: newServer(t, "upstream", upstream), known: knownDifferences()}
	p.do(t, "POST /api/v1/namespaces", asYAML, `{apiVersion: v1, kind: Namespace, metadata: {name: conformance}}`)
	p.do(t, "POST "+crdPath, "", auditCRD)
	p.waitFor(t, "/apis/audit.example.com/v1", func(a response) bool { return a.code == http.StatusOK })
	p.do(t, "POST "+rbacPath+"/namespaces/conformance/roles", "",
		`{"metadata":{"name":"view"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}]}`)
	p.do(t, "POST "+rbacPath+"/namespaces/conformance/rolebindings", "",
		`{"metadata":{"name":"view"},"roleRef":{`+asRBAC+`,"kind":"Role","name":"view"},"subjects":[{`+asRBAC+
			`,"kind":"User","name":"viewer"}]}`)
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			a, err := p.upstream.send(ctx, request{method: "GET", path: configMaps + "/none", header: asViewer})
			return a.code == http.StatusNotFound, err
		}); err != nil {
		t.Fatal(err) // kube-apiserver applies a new role only after a delay
	}
	for i, r := range auditRequests {
		header := http.Header{"Audit-Id": {fmt.Sprintf("%03d %s %s", i, r.method, r.path)}}
		for name, values := range r.header {
			header[name] = values
		}
		r.header = header
		p.exchange(t, r)
	}
	const last = "last request"
	p.exchange(t, request{method: "GET", path: "/version", header: http.Header{"Audit-Id": {last}}})
	got, want := auditEvents(t, trellisLog, last), auditEvents(t, upstreamLog, last)
	for _, d := range compareValues("", got, want) {
		if !p.isKnown(request{}, d) {
			t.Error(d)
		}
	}
	if len(want) < len(auditRequests) {
		t.Errorf("got %d events of kube-apiserver, want at least one for each of %d requests", len(want),
			len(auditRequests))
	}
}

// auditEvents returns the events of an audit log by request and stage. It blocks until the log contains the
// completion of the request with the audit ID in last.
func auditEvents(t *testing.T, log, last string) map[string]any {
	t.Helper()
	var all map[string]any
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) {
			text, err := os.ReadFile(log)
			all = map[string]any{}
			for line := range bytes.Lines(text) {
				var e map[string]any
				if json.Unmarshal(line, &e) != nil {
					break // the line is still being written
				}
				if id := nested[string](e, "auditID"); strings.Contains(id, " ") {
					delete(e, "stageTimestamp")
					delete(e, "requestReceivedTimestamp")
					delete(e, "auditID")
					delete(nested[map[string]any](e, "responseObject", "status"), "token")
					// Only slow requests have latency annotations.
					maps.DeleteFunc(nested[map[string]any](e, "annotations"), func(k string, _ any) bool {
						return strings.HasPrefix(k, "apiserver.latency.k8s.io/")
					})
					all[id+" "+nested[string](e, "stage")] = normalizeValue("", e)
				}
			}
			return all[last+" ResponseComplete"] != nil, err
		})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
