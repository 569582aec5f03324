package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The documentation uses this address for the control plane, and these images.
const (
	controlAddress = "35.225.206.7"
	serverImage    = "registry.k8s.io/kas-network-proxy/proxy-server:v0.0.37"
	agentImage     = "us.gcr.io/k8s-artifacts-prod/kas-network-proxy/proxy-agent:v0.0.37"
)

// newTunnelCluster returns two machines with a running API server and the files of the documentation. The kubeconfig
// of the Konnectivity server does not exist yet.
func newTunnelCluster(t *testing.T, packages ...string) *twoMachines {
	t.Helper()
	f := newTwoMachines(t, controlAddress, packages...)
	for _, file := range documents(t, "15-konnectivity/*") {
		f.link(filepath.Base(file), file)
	}
	f.startServer()
	return f
}

// waitForServerLog waits until the log of the Konnectivity server contains the text. It reads the log file, because
// `kubectl logs` would require a tunnel.
func (f *twoMachines) waitForServerLog(text string) {
	f.Helper()
	f.expectEventually("cat .trellis-cluster/control-plane/kubelet/logs/"+
		"kube-system_konnectivity-server-control-plane_*/konnectivity-server-container/*.log", text)
}

// createBox creates a Pod that runs a shell command on a node, and waits until the Pod is ready.
func (f *twoMachines) createBox(name, command string) *corev1.Pod {
	f.Helper()
	f.createPod(name, func(p *corev1.Pod) {
		p.Spec.Containers[0].Image, p.Spec.Containers[0].Command = "busybox", []string{"sh", "-c", command}
	})
	return f.waitForPod("default", name)
}

// TestKonnectivity follows the documentation's page about Konnectivity with its unchanged manifests and script. The
// API server cannot dial the nodes. The comment of each called function names the requirements that it checks. KON-001
// KON-002 KON-009
func TestKonnectivity(t *testing.T) {
	f := newTunnelCluster(t, "./examples/extension-server", "./examples/conversion-webhook")
	for _, name := range []string{"web", "refuses"} {
		f.must(os.Symlink(program(t, ""), filepath.Join(f.dir, "path", name)))
	}
	image := func(name, program string) string { return name + "=" + f.dir + "/path/" + program }
	f.startRemoteNodes(image(agentImage, "trellis"), "busybox=/bin", image("nginx", "web"), image("refuses", "refuses"),
		image("example-conversion-webhook-server", "conversion-webhook"),
		image("example.com/sample-extension-apiserver:latest", "extension-server"))
	f.createBox("box", "echo started; exec sleep 1000000")
	f.checkKubeconfigScript()
	f.startControlPlaneNode(image(serverImage, "trellis"), "busybox=/bin")
	f.checkServerStart()
	f.checkMissingBinding()
	f.expect("kubectl apply -f konnectivity-rbac.yaml",
		"clusterrolebinding.rbac.authorization.k8s.io/system:konnectivity-server created")
	f.expectEventually("kubectl logs box", "started")
	f.checkServerPod()
	f.checkSharedSocket()
	f.checkAgents()
	f.checkConnectionsToPods()
	f.checkWebhooks()
	f.checkExtensionServer()
	f.checkForeignTokens()
	f.checkServerCrash()
	f.checkAgentDeployment()
	f.checkServerDaemonSet()
}

// checkKubeconfigScript runs the documentation's script and checks its result:
//   - The certificate is signed by the cluster's CA and valid for 375 days. KON-013
//   - The kubeconfig has the same server address as the administrator's kubeconfig. KON-014
//   - The kubeconfig has the context that the documentation shows. KON-015
//   - The API server authenticates the user system:konnectivity-server. KON-016
//   - The script leaves no other files. KON-017
func (f *twoMachines) checkKubeconfigScript() {
	f.Helper()
	const config = "kubectl --kubeconfig /etc/kubernetes/konnectivity-server.conf "
	f.expect("sh make-konnectivity-kubeconfig.sh", "")
	f.expect(config+"config view --raw -o jsonpath='{.users[0].user.client-certificate-data}' | "+
		"base64 -d > shown.crt && openssl verify -CAfile /etc/kubernetes/pki/ca.crt shown.crt && "+
		"openssl x509 -in shown.crt -noout -subject -checkend $((374*86400))",
		"shown.crt: OK\nsubject=CN = system:konnectivity-server\nCertificate will not expire")
	f.expect("openssl x509 -in shown.crt -noout -checkend $((376*86400)) || true", "Certificate will expire")
	f.expect(config+"config view -o jsonpath='{.clusters[0].name} {.clusters[0].cluster.server} {.current-context}'",
		"kubernetes "+f.server.Config.Host+" system:konnectivity-server@kubernetes")
	f.expect(config+"auth whoami -o jsonpath='{.status.userInfo.username}'", "system:konnectivity-server")
	f.expect("ls konnectivity.crt konnectivity.key konnectivity.csr 2>&1 | grep -c 'No such file'", "3")
}

// checkServerStart runs the Konnectivity server of the documentation as a static Pod and checks its ports:
//   - It listens on the socket in the API server's egress configuration. KON-007 KON-020
//   - It accepts connections of the API server only on this socket. KON-023 KON-024
//   - Its ports for health and metrics respond. KON-026 KON-027
//   - It is alive but not ready, because no agent is connected. KON-052
func (f *twoMachines) checkServerStart() {
	f.Helper()
	f.expect("kubectl taint node control-plane node-role.kubernetes.io/control-plane:NoSchedule",
		"node/control-plane tainted")
	f.expectEventually("kubectl logs box",
		"egress selection cluster: connect to the tunnel server at "+
			"/etc/kubernetes/konnectivity-server/konnectivity-server.socket: ")
	f.expect("mkdir -p /etc/kubernetes/manifests && cp konnectivity-server.yaml /etc/kubernetes/manifests", "")
	f.waitForServerLog("serving")
	for _, address := range []string{"127.0.0.1", f.address} {
		f.expectEventually("curl -sS http://"+address+":8134/healthz", "ok")
	}
	for _, path := range []string{"ready", "readyz"} {
		f.expect("curl -sS -w ' %{http_code}' http://127.0.0.1:8134/"+path, "no connection to any proxy agent 500")
	}
	f.expect("curl -sS http://127.0.0.1:8133/metrics", "konnectivity_network_proxy_server_ready_backend_connections 0")
	f.expect("find /etc/kubernetes/konnectivity-server -type s",
		"/etc/kubernetes/konnectivity-server/konnectivity-server.socket")
	f.expect("curl -sS http://127.0.0.1:8090/ 2>&1 || echo ended with $?", "ended with 7") // connection refused
}

// checkMissingBinding starts agents while the Konnectivity server is not permitted to create TokenReviews:
//   - The TokenReviews fail with 403, and the Konnectivity server accepts no agent. KON-049
//   - Requests through the tunnel fail with a clear error, and other requests succeed. KON-054 KON-029 KON-046
func (f *twoMachines) checkMissingBinding() {
	f.Helper()
	f.expect("kubectl apply -f konnectivity-rbac.yaml && kubectl delete clusterrolebinding system:konnectivity-server",
		"serviceaccount/konnectivity-agent created\nclusterrolebinding.rbac.authorization.k8s.io "+
			"\"system:konnectivity-server\" deleted")
	f.expect("kubectl taint node node-2 CriticalAddonsOnly=yes:NoSchedule && kubectl label node node-2 only=critical",
		"node/node-2 tainted")
	f.expect("kubectl apply -f konnectivity-agent.yaml", "daemonset.apps/konnectivity-agent created")
	f.waitForServerLog(`tokenreviews.authentication.k8s.io is forbidden: ` +
		`User \"system:konnectivity-server\" cannot create resource \"tokenreviews\"`)
	f.expect("curl -sS http://127.0.0.1:8134/readyz", "no connection to any proxy agent")
	f.expect("kubectl logs box 2>&1 || true", "No agent available")
	f.expect("kubectl get --raw /api/v1/nodes/node-1/proxy/healthz 2>&1 || true",
		"Error from server (ServiceUnavailable): ")
	f.expect("kubectl get pod box", "box 1/1 Running")
}

// checkServerPod checks that the Pod of the Konnectivity server uses the node's network, has the priority of system
// components, and reserves its ports. It checks that the Pod sees the files of the host, and can write only to the
// volume of the socket. KON-018 KON-019 KON-031 KON-032
func (f *twoMachines) checkServerPod() {
	f.Helper()
	pod := f.waitForPod("kube-system", "konnectivity-server-control-plane")
	if pod.Annotations[corev1.MirrorPodAnnotationKey] == "" || *pod.Spec.Priority != 2_000_000_000 ||
		pod.Status.PodIP != f.address || !pod.Spec.HostNetwork {
		f.Errorf("%+v", pod)
	}
	const server = "kubectl -n kube-system exec konnectivity-server-control-plane -- "
	f.expect(server+`cat /proc/1/cmdline | tr '\0' ' '`, "/proxy-server --logtostderr=true --uds-name=")
	f.expect(server+"touch /etc/kubernetes/pki/new 2>&1 || true", "Read-only file system")
	f.expect(server+"sh -c 'echo >>/etc/kubernetes/konnectivity-server.conf' 2>&1 || true", "Read-only file system")
	f.expect(server+"touch /etc/kubernetes/konnectivity-server/new && ls /etc/kubernetes/konnectivity-server", "new")
	for _, p := range []int32{8132, 8133, 8134} {
		name := fmt.Sprintf("wants-%d", p)
		f.createPod(name, withHostPort(p), withNodeSelector("kubernetes.io/hostname", "control-plane"),
			func(p *corev1.Pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			})
		if output := f.waitForUnscheduled(name, corev1.PodReasonUnschedulable); !strings.Contains(output,
			"didn't have free ports") {
			f.Errorf("port %d: got message %q", p, output)
		}
	}
}

// checkAgents checks that agents run on all nodes except the control plane, whose taint they do not tolerate. They
// must also run on a node with the taint CriticalAddonsOnly. KON-035 KON-036 KON-047 KON-048
func (f *twoMachines) checkAgents() {
	f.Helper()
	waitFor(f.fixture, f.AppsV1().DaemonSets("kube-system"), "konnectivity-agent",
		func(d *appsv1.DaemonSet) bool { return d.Status.NumberAvailable == 2 })
	f.createPod("other", withNodeSelector("only", "critical"))
	if output := f.waitForUnscheduled("other", corev1.PodReasonUnschedulable); !strings.Contains(output,
		"untolerated taint") {
		f.Errorf("got message %q, want an untolerated taint", output)
	}
	f.expect("kubectl -n kube-system get daemonsets,serviceaccounts -o name "+
		"-l addonmanager.kubernetes.io/mode=Reconcile",
		"daemonset.apps/konnectivity-agent\nserviceaccount/konnectivity-agent")
	f.expect("kubectl -n kube-system get serviceaccounts -l kubernetes.io/cluster-service=true -o name",
		"serviceaccount/konnectivity-agent")
	f.expect("kubectl get clusterrolebindings -l "+
		"addonmanager.kubernetes.io/mode=Reconcile,kubernetes.io/cluster-service=true -o name",
		"clusterrolebinding.rbac.authorization.k8s.io/system:konnectivity-server")
	pods, err := f.CoreV1().Pods("kube-system").List(f.Context(),
		metav1.ListOptions{LabelSelector: "k8s-app=konnectivity-agent"})
	f.must(err)
	nodes := map[string]bool{}
	for _, pod := range pods.Items {
		nodes[pod.Spec.NodeName] = true
		f.checkAgent(&pod)
	}
	if len(nodes) != 2 || nodes["control-plane"] {
		f.Errorf("got agents on %v, want node-1 and node-2", nodes)
	}
	f.expectEventually("curl -sS http://127.0.0.1:8133/metrics",
		"konnectivity_network_proxy_server_ready_backend_connections 2")
	f.expect("curl -sS http://127.0.0.1:8134/readyz", "ok")
	f.expect("kubectl -n kube-system get events --field-selector reason=SuccessfulCreate",
		"daemonset/konnectivity-agent")
}

// checkAgent checks one agent:
//   - It is connected and ready, and serves metrics. KON-037 KON-039 KON-040 KON-052
//   - Its token is bound to its Pod and valid only for the audience of the Konnectivity server. KON-042 KON-056
func (f *twoMachines) checkAgent(pod *corev1.Pod) {
	f.Helper()
	if *pod.Spec.Priority != 2_000_000_000 {
		f.Errorf("got priority %d, want 2000000000", *pod.Spec.Priority)
	}
	f.expectEventually("kubectl get --raw /api/v1/namespaces/kube-system/pods/"+pod.Name+":8134/proxy/readyz", "ok")
	agent := "kubectl -n kube-system exec " + pod.Name + " -- "
	f.expect(agent+`cat /proc/1/cmdline | tr '\0' ' '`,
		"/proxy-agent --logtostderr=true --ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt "+
			"--proxy-server-host="+controlAddress)
	f.expectEventually(agent+"curl -sS http://127.0.0.1:8133/metrics",
		"konnectivity_network_proxy_agent_open_server_connections 1")
	token, err := f.run(agent + "cat /var/run/secrets/tokens/konnectivity-agent-token")
	f.must(err)
	f.checkToken(token, pod, time.Hour)
	token, err = f.run("kubectl -n kube-system create token konnectivity-agent " +
		"--audience=system:konnectivity-server --duration=20m --bound-object-kind=Pod --bound-object-name=" + pod.Name)
	f.must(err)
	f.checkToken(strings.TrimSpace(token), pod, 20*time.Minute)
}

// checkToken checks that a token is bound to the Pod and is valid only for the audience of the Konnectivity server. It
// creates TokenReviews for this.
func (f *fixture) checkToken(token string, pod *corev1.Pod, lifetime time.Duration) {
	f.Helper()
	var claims struct{ Iat, Exp int64 }
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token+"..", ".")[1])
	f.must(err)
	f.must(json.Unmarshal(payload, &claims))
	if got := time.Duration(claims.Exp-claims.Iat) * time.Second; got != lifetime {
		f.Errorf("got a token for %v, want %v", got, lifetime)
	}
	const audience = "system:konnectivity-server"
	for requested, valid := range map[string]bool{audience: true, "other": false} {
		review, err := f.AuthenticationV1().TokenReviews().Create(f.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{requested}},
		}, metav1.CreateOptions{})
		f.must(err)
		s := review.Status
		if s.Authenticated != valid || valid &&
			(s.User.Username != "system:serviceaccount:kube-system:konnectivity-agent" ||
				strings.Join(s.Audiences, " ") != audience ||
				strings.Join(s.User.Extra["authentication.kubernetes.io/pod-name"], " ") != pod.Name) {
			f.Errorf("review for audience %s: got %+v", requested, s)
		}
	}
}
