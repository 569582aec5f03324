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

// flowNames are the names of the FlowSchemas and of the priority levels of a server by their UIDs.
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

// flowOf names the FlowSchema and the priority level of a request.
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
	named := func(header string) string {
		if uid := resp.Header.Get(header); uid != "" {
			return names[uid]
		}
		return "none"
	}
	return named("X-Kubernetes-PF-FlowSchema-UID") + " " + named("X-Kubernetes-PF-PriorityLevel-UID")
}

// Each request is of the FlowSchema and of the priority level that it is of at kube-apiserver.
func TestFlows(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts kube-apiserver")
	}
	upstream := startKubeAPIServer(t, "--service-cluster-ip-range=10.0.0.0/24", "--enable-priority-and-fairness=true")
	ours, theirs := newServer(t, "here", startTrellis(t).Config), newServer(t, "upstream", upstream)
	var theirNames map[string]string
	ourNames := ours.flowNames(t)
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		theirNames = theirs.flowNames(t) // what every cluster has, and it follows
		return len(theirNames) >= len(ourNames) && theirs.flowOf(t, theirNames, "GET", "/api/v1/namespaces/default/pods/a", "jane", nil) == "global-default global-default", nil
	}); err != nil {
		t.Fatalf("%v: %v", err, theirNames)
	}
	seen := map[string]bool{}
	for _, caller := range [][]string{
		{"jane", "devs"}, {"root", "system:masters"}, {"kubelet", "system:nodes"}, {"system:kube-scheduler"}, {"system:kube-controller-manager"}, {"system:anonymous"},
		{"system:serviceaccount:default:default"}, {"system:serviceaccount:kube-system:generic-garbage-collector"},
	} {
		for _, path := range []string{
			"/healthz", "/livez", "/metrics", "/apis", "/version", "/api/v1/namespaces/default/pods/a", "/api/v1/nodes", "/api/v1/nodes/n/status",
			"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n",
			"/api/v1/namespaces/kube-system/endpoints/a", "/api/v1/namespaces/default/pods/a/log", "/api/v1/namespaces/default/events", "/apis/none/v1/x", "/debug/pprof/cmdline",
		} {
			for _, method := range []string{http.MethodGet, http.MethodPut} {
				here, there := ours.flowOf(t, ourNames, method, path, caller[0], caller[1:]), theirs.flowOf(t, theirNames, method, path, caller[0], caller[1:])
				if seen[there] = true; here != there {
					t.Errorf("%s %s by %v is of %s, want %s", method, path, caller, here, there)
				}
			}
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %s have been seen", fmt.Sprint(seen))
	}
}
