package conformance_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const flowAPI = "/apis/flowcontrol.apiserver.k8s.io/v1"

// flowNames returns the names of a server's FlowSchemas and priority levels by UID.
func (s *server) flowNames(t *testing.T) map[string]string {
	t.Helper()
	names := map[string]string{}
	for _, plural := range []string{"/flowschemas", "/prioritylevelconfigurations"} {
		resp, err := s.http.Get(s.host + flowAPI + plural)
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Items []struct{ Metadata struct{ Name, UID string } }
		}
		if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		for _, item := range list.Items {
			names[item.Metadata.UID] = item.Metadata.Name
		}
	}
	return names
}

// flowOf returns the names of the FlowSchema and priority level that the server assigns to a request.
func (s *server) flowOf(t *testing.T, names map[string]string, method, path, user string, groups []string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Impersonate-User", user)
	r.Header["Impersonate-Group"] = groups
	resp, err := s.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	name := func(header string) string {
		if uid := resp.Header.Get(header); uid != "" {
			return names[uid]
		}
		return "none"
	}
	return name("X-Kubernetes-PF-FlowSchema-UID") + " " + name("X-Kubernetes-PF-PriorityLevel-UID")
}

// TestFlows checks that both servers assign the same FlowSchema and priority level to each request.
func TestFlows(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts kube-apiserver")
	}
	config := startKubeAPIServer(t, "--service-cluster-ip-range=10.0.0.0/24", "--enable-priority-and-fairness=true")
	trellis, upstream := newServer(t, "trellis", startTrellis(t).Config), newServer(t, "upstream", config)
	var upstreamNames map[string]string
	trellisNames := trellis.flowNames(t)
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			// kube-apiserver creates the default configuration after its start, and applies it later.
			upstreamNames = upstream.flowNames(t)
			flow := upstream.flowOf(t, upstreamNames, "GET", "/api/v1/namespaces/default/pods/a", "jane", nil)
			return len(upstreamNames) >= len(trellisNames) && flow == "global-default global-default", nil
		}); err != nil {
		t.Fatalf("waiting for kube-apiserver's FlowSchemas: %v: got %v", err, upstreamNames)
	}
	seen := map[string]bool{}
	for _, caller := range [][]string{
		{"jane", "devs"}, {"root", "system:masters"}, {"kubelet",
			"system:nodes"}, {"system:kube-scheduler"}, {"system:kube-controller-manager"}, {"system:anonymous"},
		{"system:serviceaccount:default:default"}, {"system:serviceaccount:kube-system:generic-garbage-collector"},
	} {
		for _, path := range []string{
			"/healthz", "/livez", "/metrics", "/apis", "/version", "/api/v1/namespaces/default/pods/a", "/api/v1/nodes",
			"/api/v1/nodes/n/status",
			"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a",
			"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n",
			"/api/v1/namespaces/kube-system/endpoints/a", "/api/v1/namespaces/default/pods/a/log",
			"/api/v1/namespaces/default/events", "/apis/none/v1/x", "/debug/pprof/cmdline",
		} {
			for _, method := range []string{http.MethodGet, http.MethodPut} {
				got := trellis.flowOf(t, trellisNames, method, path, caller[0], caller[1:])
				want := upstream.flowOf(t, upstreamNames, method, path, caller[0], caller[1:])
				if seen[want] = true; got != want {
					t.Errorf("%s %s by %v: got flow %s, want %s", method, path, caller, got, want)
				}
			}
		}
	}
	if len(seen) < 10 {
		t.Errorf("got only the flows %s, want at least 10", fmt.Sprint(seen))
	}
}
