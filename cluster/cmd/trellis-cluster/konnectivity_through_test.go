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

// streams are commands whose bytes go both ways.
const streams = `printf 'one\ntwo\n' | kubectl exec -i box -- sort -r | tr '\n' ' '; echo
kubectl exec box -- sh -c 'exit 7' || echo ended with $?
printf 'three\nfour\n' | kubectl run once -i --rm --restart=Never --image=busybox --command -- sh -c 'sleep 1; sort -r | tr "\n" " "; echo; sleep 1'
rm -f forward.txt
kubectl port-forward pod/web :80 > forward.txt &
trap 'kill $!' EXIT
until grep Forwarding forward.txt; do sleep 0.1; done
curl -sS http://$(grep -o -m1 "127.0.0.1:[0-9]*" forward.txt)/port
`

// reachesPods does all that goes to nodes, Pods and Services. KON-011: it comes there. KON-044: bytes go both ways, and what ends at one end does so
// at the other. KON-043: the control plane cannot dial any of them by itself.
func (f *far) reachesPods() {
	f.Helper()
	f.shows("kubectl run web --image=nginx --port=80 --expose", "pod/web created")
	web := f.running("default", "web")
	node, err := f.CoreV1().Nodes().Get(f.Context(), web.Spec.NodeName, metav1.GetOptions{})
	f.must(err)
	f.unreachable(net.JoinHostPort(web.Status.PodIP, "80"))
	f.unreachable(net.JoinHostPort(nodesAddress, strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port))))

	f.shows("kubectl logs box --tail=1", "said")
	for _, by := range []string{"true", "false"} { // WebSockets, or SPDY
		f.shows("export KUBECTL_REMOTE_COMMAND_WEBSOCKETS="+by+" KUBECTL_PORT_FORWARD_WEBSOCKETS="+by+"\n"+streams, "two one\nended with 7\nthree four\nweb")
	}
	for _, path := range []string{"/api/v1/namespaces/default/pods/web/proxy/", "/api/v1/namespaces/default/services/web:80/proxy/"} {
		f.comes("kubectl get --raw "+path, "web")
	}
	f.shows("kubectl get --raw /api/v1/nodes/node-1/proxy/healthz", "ok")
	f.shows("kubectl get --raw /metrics | grep egress_dialer_dial_start_total", `apiserver_egress_dialer_dial_start_total{protocol="grpc",transport="uds"}`)
	f.shows("head -c 20000000 /dev/zero | kubectl exec -i box -- wc -c", "20000000")
}

// certificate makes one for a Service of namespace default, which is its own CA, as a Secret of its name.
func (f *far) certificate(service string) {
	f.Helper()
	f.shows(fmt.Sprintf("openssl req -x509 -newkey rsa:2048 -nodes -days 9 -subj /CN=%[1]s -addext subjectAltName=DNS:%[1]s.default.svc -keyout %[1]s.key -out %[1]s.crt 2>&1 && "+
		"kubectl create secret tls %[1]s --cert=%[1]s.crt --key=%[1]s.key", service), "created")
}

// serveRefusals is the program of an admission webhook that refuses everything.
func serveRefusals() {
	fmt.Println(http.ListenAndServeTLS(":8443", "/tls/tls.crt", "/tls/tls.key", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: "refused on a far node"}}
		_ = json.NewEncoder(w).Encode(review)
	})))
	os.Exit(1)
}

const refusals = `kubectl apply -f - <<EOF
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

// reachesWebhooks has webhooks on far nodes asked, by their Services. KON-011 CNV-074: one of admission, and one that converts.
func (f *far) reachesWebhooks() {
	f.Helper()
	f.certificate("refuses")
	f.pod("refuses", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "refuses"}
		p.Spec.Volumes = []corev1.Volume{{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "refuses"}}}}
		c := &p.Spec.Containers[0]
		c.Image, c.VolumeMounts = "refuses", []corev1.VolumeMount{{Name: "tls", MountPath: "/tls"}}
	})
	f.running("default", "refuses")
	f.shows("kubectl expose pod refuses --port=8443", "service/refuses exposed")
	f.shows(refusals, "validatingwebhookconfiguration.admissionregistration.k8s.io/refuses created")
	f.comes(`kubectl create --dry-run=server -f - <<EOF
{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default", "labels": {"refuse": "yes"}}}
EOF`, `admission webhook "refuses.example.com" denied the request: refused on a far node`)

	const name = "example-conversion-webhook-server"
	f.certificate(name)
	manifests, err := filepath.Abs(filepath.Join(repository, "examples/conversion-webhook/manifests"))
	f.must(err)
	f.shows("kubectl apply -f "+manifests+"/service.yaml -f "+manifests+"/deployment.yaml && kubectl rollout status deployment "+name+" --timeout=60s", "successfully rolled out")
	f.shows(`sed "s|# put caBundle.*|caBundle: $(base64 -w0 `+name+`.crt)|" `+manifests+`/crd.yaml | kubectl apply -f - && kubectl wait --for=condition=Established crd/crontabs.example.com`, "condition met")
	f.comes(`kubectl apply -f - <<EOF
{"apiVersion": "example.com/v1beta1", "kind": "CronTab", "metadata": {"name": "c", "namespace": "default"}, "hostPort": "localhost:1234"}
EOF
kubectl get crontabs.v1.example.com c -o jsonpath='{.host} {.port}'`, "localhost 1234")
}

// reachesExtension has an API served by a Deployment on far nodes, behind a Service whose address only these know. KON-011 AGG-062.
func (f *far) reachesExtension() {
	f.Helper()
	f.steps("01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11")
	f.shows("kubectl -n wardle rollout status deployment/wardle-server --timeout=100s", "successfully rolled out")
	f.shows("kubectl wait apiservice v1alpha1.wardle.example.com --for=condition=Available --timeout=60s", "condition met")
	f.steps("12")
	f.shows("kubectl get flunders", "my-first-flunder")
}

// refusesOthers has agents come that are not those which the server is for. KON-028 KON-030 KON-045: another audience, another service account and
// another namespace are refused, with the reason, and get no tunnel. KON-022 KON-025 KON-038 KON-041: the way there is as for those that are let in.
func (f *far) refusesOthers() {
	f.Helper()
	f.shows("kubectl -n kube-system create serviceaccount other && kubectl -n default create serviceaccount konnectivity-agent && cp /etc/kubernetes/pki/ca.crt cluster-ca.crt", "created")
	for _, c := range []struct{ namespace, account, audience, why string }{
		{"kube-system", "konnectivity-agent", "other", "the token is not valid for the audience"},
		{"kube-system", "other", "system:konnectivity-server", "the token is of ServiceAccount"},
		{"default", "konnectivity-agent", "system:konnectivity-server", "the token is of a ServiceAccount in namespace"},
	} {
		f.shows("kubectl create token "+c.account+" -n "+c.namespace+" --audience="+c.audience+" > token", "")
		p := f.on(f.nodes, f.dir+"/path/trellis", "konnectivity", "agent", "--proxy-server-host="+f.address, "--proxy-server-port=8132", "--ca-cert=cluster-ca.crt",
			"--service-account-token-path=token", "--health-server-port=0", "--admin-server-port=0")
		p.says(1, "No connection to a server", "the agent's token is not accepted: see the log of the tunnel server")
		p.kill()
		f.serverSays(c.why)
	}
	f.shows("curl -sS http://127.0.0.1:8133/metrics", "konnectivity_network_proxy_server_ready_backend_connections 2")
}

// killServer kills the server's process, as a crash does. It is the one of that name in the control plane's network.
const killServer = `for p in /proc/[0-9]*; do
  if [ "$(readlink $p/ns/net)" = "$(readlink /proc/self/ns/net)" ] && grep -q ^/proxy-server $p/cmdline; then kill -9 ${p#/proc/} && echo killed; fi
done 2>/dev/null`

// survivesServer has the server crash while something goes through it. KON-053: that ends, the agents come back by themselves, and the next works.
// KON-021: the socket that is left over is no hindrance.
func (f *far) survivesServer() {
	f.Helper()
	before := f.running("kube-system", "konnectivity-server-control-plane").Status.ContainerStatuses[0].RestartCount
	followed := f.on(f.control, f.dir+"/path/kubectl", "--kubeconfig="+f.server.Kubeconfig, "logs", "--follow", "box")
	followed.says(1, "said")
	f.shows(killServer, "killed")
	followed.exit()
	f.shows("kubectl get pod box", "box 1/1 Running")
	f.comes("kubectl logs box", "said")
	f.comes("curl -sS http://127.0.0.1:8133/metrics", "konnectivity_network_proxy_server_ready_backend_connections 2")
	until(f.world, f.CoreV1().Pods("kube-system"), "konnectivity-server-control-plane", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount > before
	})
}

// staticServer is the static Pod of an API server, which the documentation's patch is for.
const staticServer = `cat > kube-apiserver.yaml <<EOF
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kube-apiserver", "namespace": "kube-system"},
 "spec": {"hostNetwork": true, "containers": [{"name": "kube-apiserver", "image": "busybox", "command": ["sleep", "1000000"]}]}}
EOF
kubectl patch --local -f kube-apiserver.yaml --type=strategic --patch-file=kube-apiserver-uds-volume.yaml -o yaml > patched.yaml
mv patched.yaml /etc/kubernetes/manifests/kube-apiserver.yaml`

// sharesSocket has the documentation's patch applied to a static Pod. KON-010: it has the folder of the socket, and may write there.
func (f *far) sharesSocket() {
	f.Helper()
	f.shows(staticServer, "")
	f.running("kube-system", "kube-apiserver-control-plane")
	f.shows("kubectl -n kube-system exec kube-apiserver-control-plane -- sh -c 'cd /etc/kubernetes/konnectivity-server && touch written && find . -type s'", "./konnectivity-server.socket")
	f.shows("ls /etc/kubernetes/konnectivity-server", "written")
}

// hasDeployment has one agent in place of those on each node. KON-035: a Deployment of the same Pods does.
func (f *far) hasDeployment() {
	f.Helper()
	text, err := os.ReadFile(document(f.T, "15-konnectivity/konnectivity-agent.yaml"))
	f.must(err)
	text = bytes.Replace(text, []byte("kind: DaemonSet"), []byte("kind: Deployment"), 1)
	f.must(os.WriteFile(filepath.Join(f.dir, "agent-deployment.yaml"), text, 0o600))
	f.shows("kubectl apply -f agent-deployment.yaml && kubectl -n kube-system rollout status deployment konnectivity-agent --timeout=60s", "deployment.apps/konnectivity-agent created")
	f.comes("curl -sS http://127.0.0.1:8133/metrics", "konnectivity_network_proxy_server_ready_backend_connections 3")
	f.shows("kubectl -n kube-system delete daemonset konnectivity-agent", `daemonset.apps "konnectivity-agent" deleted`)
	f.comes("kubectl -n kube-system get pods -l k8s-app=konnectivity-agent -o jsonpath='[{.items[*].metadata.ownerReferences[*].kind}]'", "[ReplicaSet]")
	f.comes("curl -sS http://127.0.0.1:8133/metrics", "konnectivity_network_proxy_server_ready_backend_connections 1")
	f.shows("kubectl logs box --tail=1", "said")
}

// serverDaemonSet is what the documentation's Pod of the server becomes the template of.
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

// hasDaemonSet has the server as one in place of the static Pod. KON-018: the agent comes to it, and the API server finds it at the same socket.
func (f *far) hasDaemonSet() {
	f.Helper()
	text, err := os.ReadFile(document(f.T, "15-konnectivity/konnectivity-server.yaml"))
	f.must(err)
	_, spec, _ := strings.Cut(string(text), "\nspec:")
	f.must(os.WriteFile(filepath.Join(f.dir, "server-daemonset.yaml"), []byte(serverDaemonSet+strings.ReplaceAll(spec, "\n", "\n    ")), 0o600))
	f.shows("rm /etc/kubernetes/manifests/konnectivity-server.yaml && kubectl -n kube-system wait --for=delete pod/konnectivity-server-control-plane --timeout=60s", "")
	f.shows("curl -sS http://127.0.0.1:8134/healthz 2>&1 || echo ended with $?", "ended with 7")
	f.shows("kubectl apply -f server-daemonset.yaml && kubectl -n kube-system rollout status daemonset konnectivity-server --timeout=60s", "daemonset.apps/konnectivity-server created")
	f.comes("curl -sS http://127.0.0.1:8133/metrics", "konnectivity_network_proxy_server_ready_backend_connections 1")
	f.comes("kubectl logs box --tail=1", "said")
}
