package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// streamCommands are kubectl commands that transfer data in both directions.
const streamCommands = `printf 'one\ntwo\n' | kubectl exec -i box -- sort -r | tr '\n' ' '; echo
kubectl exec box -- sh -c 'exit 7' || echo ended with $?
printf 'three\nfour\n' | kubectl run once -i --rm --restart=Never --image=busybox --command -- \
  sh -c 'sleep 1; sort -r | tr "\n" " "; echo; sleep 1'
rm -f forward.txt
kubectl port-forward pod/web :80 > forward.txt &
trap 'kill $!' EXIT
until grep Forwarding forward.txt; do sleep 0.1; done
curl -sS http://$(grep -o -m1 "127.0.0.1:[0-9]*" forward.txt)/port
`

// checkConnectionsToPods sends requests of all kinds to nodes, Pods and Services:
//   - The requests arrive through the tunnel. KON-011
//   - Data is transferred in both directions, and each side receives the end of the data. KON-044
//   - The control plane cannot dial the destinations directly. KON-043
func (f *twoMachines) checkConnectionsToPods() {
	f.Helper()
	f.expect("kubectl run web --image=nginx --port=80 --expose", "pod/web created")
	web := f.waitForPod("default", "web")
	node, err := f.CoreV1().Nodes().Get(f.Context(), web.Spec.NodeName, metav1.GetOptions{})
	f.must(err)
	f.checkUnreachable(net.JoinHostPort(web.Status.PodIP, "80"))
	f.checkUnreachable(net.JoinHostPort(nodesAddress,
		strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port))))

	f.expect("kubectl logs box --tail=1", "started")
	for _, webSockets := range []string{"true", "false"} { // WebSockets, or SPDY
		f.expect("export KUBECTL_REMOTE_COMMAND_WEBSOCKETS="+webSockets+" KUBECTL_PORT_FORWARD_WEBSOCKETS="+webSockets+
			"\n"+streamCommands, "two one\nended with 7\nthree four\nweb")
	}
	for _, path := range []string{"/api/v1/namespaces/default/pods/web/proxy/",
		"/api/v1/namespaces/default/services/web:80/proxy/"} {
		f.expectEventually("kubectl get --raw "+path, "web")
	}
	f.expect("kubectl get --raw /api/v1/nodes/node-1/proxy/healthz", "ok")
	f.expect("kubectl get --raw /metrics | grep egress_dialer_dial_start_total",
		`apiserver_egress_dialer_dial_start_total{protocol="grpc",transport="uds"}`)
	f.expect("head -c 20000000 /dev/zero | kubectl exec -i box -- wc -c", "20000000")
}

// createCertificate creates a self-signed certificate for a Service of namespace default. It stores the certificate in
// a Secret with the name of the Service.
func (f *twoMachines) createCertificate(service string) {
	f.Helper()
	f.expect(fmt.Sprintf("openssl req -x509 -newkey rsa:2048 -nodes -days 9 -subj /CN=%[1]s -addext "+
		"subjectAltName=DNS:%[1]s.default.svc -keyout %[1]s.key -out %[1]s.crt 2>&1 && "+
		"kubectl create secret tls %[1]s --cert=%[1]s.crt --key=%[1]s.key", service), "created")
}

// serveDenyingWebhook serves an admission webhook that denies all requests. A Pod runs it.
func serveDenyingWebhook() {
	fmt.Println(http.ListenAndServeTLS(":8443", "/tls/tls.crt", "/tls/tls.key",
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var review admissionv1.AdmissionReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
				http.Error(w, "no review", http.StatusBadRequest)
				return
			}
			review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID,
				Result: &metav1.Status{Message: "refused on a far node"}}
			_ = json.NewEncoder(w).Encode(review)
		})))
	os.Exit(1)
}

const denyingWebhook = `kubectl apply -f - <<EOF
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: refuses}
webhooks:
- name: refuses.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {namespace: default, name: refuses, port: 8443}, caBundle: $(base64 -w0 refuses.crt)}
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [configmaps], scope: Namespaced}]
  objectSelector: {matchLabels: {refuse: "yes"}}
EOF`

// checkWebhooks checks that the API server calls an admission webhook and a conversion webhook on the nodes through
// their Services. KON-011 CNV-074
func (f *twoMachines) checkWebhooks() {
	f.Helper()
	f.createCertificate("refuses")
	f.createPod("refuses", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "refuses"}
		p.Spec.Volumes = []corev1.Volume{{Name: "tls",
			VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "refuses"}}}}
		c := &p.Spec.Containers[0]
		c.Image, c.VolumeMounts = "refuses", []corev1.VolumeMount{{Name: "tls", MountPath: "/tls"}}
	})
	f.waitForPod("default", "refuses")
	f.expect("kubectl expose pod refuses --port=8443", "service/refuses exposed")
	f.expect(denyingWebhook, "validatingwebhookconfiguration.admissionregistration.k8s.io/refuses created")
	f.expectEventually(`kubectl create --dry-run=server -f - <<EOF
{"apiVersion": "v1", "kind": "ConfigMap",
 "metadata": {"name": "c", "namespace": "default", "labels": {"refuse": "yes"}}}
EOF`, `admission webhook "refuses.example.com" denied the request: refused on a far node`)

	const name = "example-conversion-webhook-server"
	f.createCertificate(name)
	manifests, err := filepath.Abs(filepath.Join(repository, "examples/conversion-webhook/manifests"))
	f.must(err)
	f.expect("kubectl apply -f "+manifests+"/service.yaml -f "+manifests+
		"/deployment.yaml && kubectl rollout status deployment "+name+" --timeout=60s", "successfully rolled out")
	f.expect(`sed "s|# Set caBundle.*|caBundle: $(base64 -w0 `+name+`.crt)|" `+manifests+
		`/crd.yaml | kubectl apply -f - && kubectl wait --for=condition=Established crd/crontabs.example.com`,
		"condition met")
	f.expectEventually(`kubectl apply -f - <<EOF
{"apiVersion": "example.com/v1beta1", "kind": "CronTab",
 "metadata": {"name": "c", "namespace": "default"}, "hostPort": "localhost:1234"}
EOF
kubectl get crontabs.v1.example.com c -o jsonpath='{.host} {.port}'`, "localhost 1234")
}

// checkExtensionServer checks that the API server proxies requests to an extension server on the nodes. Only the nodes
// can route the address of the Service of the extension server. KON-011 AGG-062
func (f *twoMachines) checkExtensionServer() {
	f.Helper()
	f.runSteps("01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11")
	f.expect("kubectl -n wardle rollout status deployment/wardle-server --timeout=100s", "successfully rolled out")
	f.expect("kubectl wait apiservice v1alpha1.wardle.example.com --for=condition=Available --timeout=60s",
		"condition met")
	f.runSteps("12")
	f.expect("kubectl get flunders", "my-first-flunder")
}

// checkForeignTokens checks that the Konnectivity server rejects agents with invalid tokens:
//   - Tokens of another audience, service account or namespace are rejected. The server logs the reason, and the agent
//     gets no tunnel. KON-028 KON-030 KON-045
//   - These agents differ from accepted agents only in the token. KON-022 KON-025 KON-038 KON-041
func (f *twoMachines) checkForeignTokens() {
	f.Helper()
	f.expect("kubectl -n kube-system create serviceaccount other && kubectl -n default create serviceaccount "+
		"konnectivity-agent && cp /etc/kubernetes/pki/ca.crt cluster-ca.crt", "created")
	for _, c := range []struct{ namespace, account, audience, reason string }{
		{"kube-system", "konnectivity-agent", "other", "the token is not valid for the audience"},
		{"kube-system", "other", "system:konnectivity-server", "the token belongs to ServiceAccount"},
		{"default", "konnectivity-agent", "system:konnectivity-server",
			"the token belongs to a ServiceAccount in namespace"},
	} {
		f.expect("kubectl create token "+c.account+" -n "+c.namespace+" --audience="+c.audience+" > token", "")
		p := f.startOn(f.nodes, f.dir+"/path/trellis", "konnectivity", "agent", "--proxy-server-host="+f.address,
			"--proxy-server-port=8132", "--ca-cert=cluster-ca.crt",
			"--service-account-token-path=token", "--health-server-port=0", "--admin-server-port=0")
		p.waitForOutput(1, "Cannot connect to a server",
			"the agent's token is not accepted: see the log of the tunnel server")
		p.kill()
		f.waitForServerLog(c.reason)
	}
	f.expect("curl -sS http://127.0.0.1:8133/metrics", "konnectivity_network_proxy_server_ready_backend_connections 2")
}

// killServerScript kills the process named proxy-server in the control plane's network namespace, as in a crash.
const killServerScript = `for p in /proc/[0-9]*; do
  if [ "$(readlink $p/ns/net)" = "$(readlink /proc/self/ns/net)" ] && grep -q ^/proxy-server $p/cmdline; then
    kill -9 ${p#/proc/} && echo killed
  fi
done 2>/dev/null`

// checkServerCrash kills the Konnectivity server while a request uses the tunnel:
//   - The request ends, the agents reconnect, and later requests succeed. KON-053
//   - The socket that the crash leaves behind does not prevent the restart. KON-021
func (f *twoMachines) checkServerCrash() {
	f.Helper()
	before := f.waitForPod("kube-system", "konnectivity-server-control-plane").Status.ContainerStatuses[0].RestartCount
	followed := f.startOn(f.control, f.dir+"/path/kubectl", "--kubeconfig="+f.server.Kubeconfig, "logs", "--follow",
		"box")
	followed.waitForOutput(1, "started")
	f.expect(killServerScript, "killed")
	followed.wait()
	f.expect("kubectl get pod box", "box 1/1 Running")
	f.expectEventually("kubectl logs box", "started")
	f.expectEventually("curl -sS http://127.0.0.1:8133/metrics",
		"konnectivity_network_proxy_server_ready_backend_connections 2")
	waitFor(f.fixture, f.CoreV1().Pods("kube-system"), "konnectivity-server-control-plane", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount > before
	})
}

// staticServerScript creates the manifest of a static Pod of an API server and applies the documentation's patch to it.
const staticServerScript = `cat > kube-apiserver.yaml <<EOF
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kube-apiserver", "namespace": "kube-system"},
 "spec": {"hostNetwork": true, "containers": [
  {"name": "kube-apiserver", "image": "busybox", "command": ["sleep", "1000000"]}]}}
EOF
kubectl patch --local -f kube-apiserver.yaml --type=strategic --patch-file=kube-apiserver-uds-volume.yaml \
  -o yaml > patched.yaml
mv patched.yaml /etc/kubernetes/manifests/kube-apiserver.yaml`

// checkSharedSocket checks that a static Pod with the documentation's patch can write to the folder of the socket.
// KON-010
func (f *twoMachines) checkSharedSocket() {
	f.Helper()
	f.expect(staticServerScript, "")
	f.waitForPod("kube-system", "kube-apiserver-control-plane")
	f.expect("kubectl -n kube-system exec kube-apiserver-control-plane -- sh -c 'cd "+
		"/etc/kubernetes/konnectivity-server && touch written && find . -type s'", "./konnectivity-server.socket")
	f.expect("ls /etc/kubernetes/konnectivity-server", "written")
}

// checkAgentDeployment replaces the DaemonSet of the agents by a Deployment. It checks that the tunnel still works.
// KON-035
func (f *twoMachines) checkAgentDeployment() {
	f.Helper()
	text, err := os.ReadFile(document(f.T, "15-konnectivity/konnectivity-agent.yaml"))
	f.must(err)
	text = bytes.Replace(text, []byte("kind: DaemonSet"), []byte("kind: Deployment"), 1)
	f.must(os.WriteFile(filepath.Join(f.dir, "agent-deployment.yaml"), text, 0o600))
	f.expect("kubectl apply -f agent-deployment.yaml && kubectl -n kube-system rollout status deployment "+
		"konnectivity-agent --timeout=60s", "deployment.apps/konnectivity-agent created")
	f.expectEventually("curl -sS http://127.0.0.1:8133/metrics",
		"konnectivity_network_proxy_server_ready_backend_connections 3")
	f.expect("kubectl -n kube-system delete daemonset konnectivity-agent",
		`daemonset.apps "konnectivity-agent" deleted`)
	f.expectEventually("kubectl -n kube-system get pods -l k8s-app=konnectivity-agent -o "+
		"jsonpath='[{.items[*].metadata.ownerReferences[*].kind}]'", "[ReplicaSet]")
	f.expectEventually("curl -sS http://127.0.0.1:8133/metrics",
		"konnectivity_network_proxy_server_ready_backend_connections 1")
	f.expect("kubectl logs box --tail=1", "started")
}

// serverDaemonSet is the first part of a manifest. The second part is the spec of the Konnectivity server's Pod in the
// documentation.
const serverDaemonSet = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: konnectivity-server, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: konnectivity-server}}
  template:
    metadata: {labels: {k8s-app: konnectivity-server}}
    spec:
      nodeSelector: {kubernetes.io/hostname: control-plane}
      tolerations: [{key: node-role.kubernetes.io/control-plane, operator: Exists}]`

// checkServerDaemonSet replaces the static Pod of the Konnectivity server by a DaemonSet. It checks that the agent
// connects to the new Pod, and that the API server connects to it through the same socket. KON-018
func (f *twoMachines) checkServerDaemonSet() {
	f.Helper()
	text, err := os.ReadFile(document(f.T, "15-konnectivity/konnectivity-server.yaml"))
	f.must(err)
	_, spec, _ := strings.Cut(string(text), "\nspec:")
	f.must(os.WriteFile(filepath.Join(f.dir, "server-daemonset.yaml"),
		[]byte(serverDaemonSet+strings.ReplaceAll(spec, "\n", "\n    ")), 0o600))
	f.expect("rm /etc/kubernetes/manifests/konnectivity-server.yaml && kubectl -n kube-system wait --for=delete "+
		"pod/konnectivity-server-control-plane --timeout=60s", "")
	f.expect("curl -sS http://127.0.0.1:8134/healthz 2>&1 || echo ended with $?", "ended with 7")
	f.expect("kubectl apply -f server-daemonset.yaml && kubectl -n kube-system rollout status daemonset "+
		"konnectivity-server --timeout=60s", "daemonset.apps/konnectivity-server created")
	f.expectEventually("curl -sS http://127.0.0.1:8133/metrics",
		"konnectivity_network_proxy_server_ready_backend_connections 1")
	f.expectEventually("kubectl logs box --tail=1", "started")
}
