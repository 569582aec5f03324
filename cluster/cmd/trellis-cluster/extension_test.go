package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// runSteps runs steps of the documentation about extension API servers. The parameter numbers contains the numbers
// with which the files of these steps begin.
func (t *terminal) runSteps(numbers ...string) {
	t.Helper()
	for _, n := range numbers {
		file, err := filepath.Abs(document(t.T, "11-extension-apiserver/"+n+"-*"))
		t.must(err)
		command := "kubectl apply -f " + file
		if filepath.Ext(file) == ".sh" {
			command = "sh " + file
		}
		if output, err := t.run(command); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, output)
		}
	}
}

// TestExtensionServerPod follows the steps of the documentation about extension API servers, with its unchanged files,
// on two nodes. It checks that the extension server runs as the Pod of a Deployment and has only the rights that the
// steps grant. It checks the certificate from a Secret, the Service, the restart after a failure, and kubectl commands
// for the Pod. EXT-005 EXT-006 EXT-007 EXT-008 EXT-009 EXT-010 EXT-011 EXT-012 EXT-013 EXT-014 EXT-015 EXT-016 EXT-018
// EXT-019 EXT-020 EXT-021 EXT-022 EXT-023 EXT-024 EXT-025 EXT-026 CRD-035
func TestExtensionServerPod(t *testing.T) {
	f := newFullFixture(t)
	at := f.newTerminal(f.TempDir(), "./examples/extension-server")
	f.startNodes(2, "example.com/sample-extension-apiserver:latest="+at.dir+"/path/extension-server")
	at.waitForTwoNodes()
	at.runSteps("01", "02", "03", "04", "05", "06", "09", "10", "11")
	at.expectEventually("kubectl -n wardle logs deployment/wardle-server",
		`configmaps "extension-apiserver-authentication" is forbidden`)
	at.expect("kubectl get apiservice v1alpha1.wardle.example.com",
		"v1alpha1.wardle.example.com wardle/wardle-server False (MissingEndpoints) 1s")
	at.runSteps("08")
	at.expect("kubectl -n wardle rollout status deployment/wardle-server --timeout=100s",
		`deployment "wardle-server" successfully rolled out`)
	at.expect("kubectl wait apiservice v1alpha1.wardle.example.com --for=condition=Available --timeout=60s",
		"condition met")
	at.expect("kubectl create clusterrole jane --verb=get,list --resource=flunders && kubectl create "+
		"clusterrolebinding jane --clusterrole=jane --user=jane", "created")
	at.expectEventually("kubectl get flunders --as=jane",
		`subjectaccessreviews.authorization.k8s.io is forbidden: User \"system:serviceaccount:wardle:apiserver\"`)
	at.runSteps("07")
	at.expectEventually("kubectl get flunders --as=jane", "No resources found in default namespace.")
	at.runSteps("12")
	at.expect("kubectl get flunders", "my-first-flunder")

	at.checkExtensionPod(f)
}

// checkExtensionPod checks that the usual kubectl commands work for the extension server's Pod.
func (t *terminal) checkExtensionPod(f *fixture) {
	t.Helper()
	pods, err := f.CoreV1().Pods("wardle").List(t.Context(), metav1.ListOptions{LabelSelector: "app=wardle-server"})
	t.must(err)
	if len(pods.Items) != 1 {
		t.Fatalf("got Pods %v, want one", pods.Items)
	}
	pod := pods.Items[0]
	owner, err := f.AppsV1().ReplicaSets("wardle").Get(t.Context(), pod.OwnerReferences[0].Name, metav1.GetOptions{})
	t.must(err)
	if owner.OwnerReferences[0].Kind != "Deployment" || pod.Status.PodIP == "" || !isReady(&pod) {
		t.Errorf("%+v", pod.Status)
	}
	last := pod.Status.ContainerStatuses[0]
	if last.RestartCount == 0 || last.State.Running == nil || last.LastTerminationState.Terminated == nil ||
		last.LastTerminationState.Terminated.ExitCode == 0 {
		t.Errorf("got %+v, want a running container that failed and was restarted", last)
	}
	for _, resource := range []string{"endpointslices", "endpoints"} {
		t.expect("kubectl -n wardle get "+resource+" -o wide", pod.Status.PodIP)
	}
	t.expect("kubectl -n wardle exec deployment/wardle-server -- sh -c 'tr \"\\0\" \" \" </proc/1/cmdline'",
		"--tls-cert-file=/serving-certs/tls.crt --tls-private-key-file=/serving-certs/tls.key")
	// The server behind the Service presents the certificate in its volume. The CA of step 02 has signed this
	// certificate.
	t.expect("curl -sS --cacert ca.crt --connect-to wardle-server.wardle.svc:443:"+pod.Status.PodIP+
		":8443 https://wardle-server.wardle.svc/readyz", "ok")
	t.expect("kubectl -n wardle exec deployment/wardle-server -- sh -c 'cat "+
		"/var/run/secrets/kubernetes.io/serviceaccount/namespace; echo; echo $KUBERNETES_SERVICE_HOST'", "wardle\n10.")
	t.expect("kubectl -n wardle describe pod "+pod.Name, "Successfully assigned wardle/"+pod.Name+" to "+
		pod.Spec.NodeName+"\nIP: "+pod.Status.PodIP+"\nwardle-server-tls")
	t.expect("kubectl -n wardle delete pod "+pod.Name+
		" && kubectl -n wardle rollout status deployment/wardle-server --timeout=100s", `pod "`+pod.Name+`" deleted`)
	waitFor(f, f.CoreV1().Pods("wardle"), "", func(p *corev1.Pod) bool { return p.Name != pod.Name && isReady(p) })
	t.expect("kubectl wait apiservice v1alpha1.wardle.example.com --for=condition=Available --timeout=60s && "+
		"kubectl get flunders", "No resources found in default namespace.")
}

// TestUpstreamSamplePod checks that upstream's manifests for the sample-apiserver work. They run it in the Pod of a
// Deployment, together with etcd. EXT-003, EXT-009, EXT-018, EXT-019, EXT-021
func TestUpstreamSamplePod(t *testing.T) {
	peers := os.Getenv("TEST_PEERS")
	if peers == "" {
		t.Skip("TEST_PEERS is not a folder with sample-apiserver and etcd: see peers/README.md")
	}
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/sample-apiserver")
	list.Dir = filepath.Join(repository, "peers")
	dir, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	f := newFullFixture(t)
	at := f.newTerminal(f.TempDir())
	etcd := filepath.Join(at.dir, "etcd") // a script, because etcd stores its data in the working directory by default
	f.must(os.WriteFile(etcd, []byte("#!/bin/sh\nexec "+peers+"/etcd --data-dir="+at.dir+"/data\n"), 0o700))
	f.startNodes(1, "kube-sample-apiserver="+peers+"/sample-apiserver", "registry.k8s.io/etcd="+etcd)
	manifests := filepath.Join(strings.TrimSpace(string(dir)), "artifacts", "example")
	at.expect("kubectl apply -f "+manifests+"/ns.yaml && kubectl apply -f "+manifests,
		"deployment.apps/wardle-server created")
	at.expect("kubectl -n wardle rollout status deployment/wardle-server --timeout=100s",
		`deployment "wardle-server" successfully rolled out`)
	at.expect("kubectl wait apiservice v1alpha1.wardle.example.com --for=condition=Available --timeout=60s && "+
		"kubectl get flunders", "No resources found in default namespace.")
	// Since release 1.37, the server must watch these kinds, or it rejects all writes. The role in the manifests does
	// not permit this watch.
	const group = ".admissionregistration.k8s.io"
	at.expect("kubectl create clusterrole policies --verb=get,list,watch "+
		"--resource=mutatingadmissionpolicies"+group+",mutatingadmissionpolicybindings"+group+`
kubectl create clusterrolebinding policies --clusterrole=policies --serviceaccount=wardle:apiserver`, "created")
	at.link("flunder.yaml", filepath.Join(repository, "examples/extension-server/manifests/flunder.yaml"))
	at.expectEventually("kubectl create -f flunder.yaml", "flunder.wardle.example.com/my-first-flunder created")
	at.expect("kubectl get flunders", "my-first-flunder")
}
