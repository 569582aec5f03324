package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

const konnectivity = "../../../../shared/spec/examples/15-konnectivity"

// konnectivityProxy is what runs as Konnectivity's server and as its agent: it says what it was started with and what it may write, and
// answers at its health port. The server listens on its socket.
func konnectivityProxy() {
	fmt.Println(strings.Join(os.Args, "\n"))
	port := ""
	for _, arg := range os.Args[1:] {
		switch name, value, _ := strings.Cut(arg, "="); name {
		case "--health-port", "--health-server-port":
			port = value
		case "--cluster-cert", "--kubeconfig":
			_, err := os.ReadFile(value)
			file, refused := os.OpenFile(value, os.O_WRONLY, 0)
			fmt.Printf("%s: %v, %v\n", value, err, errors.Unwrap(refused))
			_ = file.Close()
		case "--uds-name":
			_, err := net.Listen("unix", value)
			fmt.Printf("%s: %v\n", value, err)
		}
	}
	fmt.Println(http.ListenAndServe(":"+port, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	os.Exit(1)
}

// KON-009 KON-035 KON-036 KON-042 KON-047 KON-048 KON-056: the documentation's agents, from its manifests as they are, run on each node,
// also on one that takes critical add-ons alone. Each has a token of its Pod for the audience of Konnectivity, which is good there alone.
func TestKonnectivityAgents(t *testing.T) {
	w := whole(t)
	at := w.terminal(t.TempDir())
	for _, name := range []string{"konnectivity-agent.yaml", "konnectivity-rbac.yaml"} {
		at.has(name, filepath.Join(konnectivity, name))
	}
	w.real(2, "us.gcr.io/k8s-artifacts-prod/kas-network-proxy/proxy-agent:v0.0.37="+program(t, ""))
	at.twoNodes()
	at.shows("kubectl taint node node-2 CriticalAddonsOnly=yes:NoSchedule && kubectl label node node-2 only=critical", "node/node-2 tainted")
	at.shows("kubectl apply -f konnectivity-rbac.yaml -f konnectivity-agent.yaml", "clusterrolebinding.rbac.authorization.k8s.io/system:konnectivity-server created\nserviceaccount/konnectivity-agent created\ndaemonset.apps/konnectivity-agent created")
	until(w, w.AppsV1().DaemonSets("kube-system"), "konnectivity-agent", func(d *appsv1.DaemonSet) bool { return d.Status.NumberAvailable == 2 })
	w.pod("other", on("only", "critical"))
	if said := w.unplaced("other", corev1.PodReasonUnschedulable); !strings.Contains(said, "untolerated taint") {
		t.Errorf("the taint is not heeded: %s", said)
	}
	at.shows("kubectl -n kube-system get daemonsets,serviceaccounts -l addonmanager.kubernetes.io/mode=Reconcile -o name", "daemonset.apps/konnectivity-agent\nserviceaccount/konnectivity-agent")
	at.shows("kubectl get clusterrolebindings -l addonmanager.kubernetes.io/mode=Reconcile,kubernetes.io/cluster-service=true -o name", "clusterrolebinding.rbac.authorization.k8s.io/system:konnectivity-server")

	pods, err := w.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: "k8s-app=konnectivity-agent"})
	w.must(err)
	nodes := map[string]bool{}
	for _, pod := range pods.Items {
		nodes[pod.Spec.NodeName] = true
		if *pod.Spec.Priority != 2_000_000_000 {
			t.Errorf("its priority is %d", *pod.Spec.Priority)
		}
		answers(w, pod.Status.PodIP)
		at.shows("kubectl -n kube-system logs "+pod.Name, "/proxy-agent\n--proxy-server-host=35.225.206.7\n--service-account-token-path=/var/run/secrets/tokens/konnectivity-agent-token")
		token, err := at.types("kubectl -n kube-system exec " + pod.Name + " -- cat /var/run/secrets/tokens/konnectivity-agent-token")
		w.must(err)
		w.isToken(token, &pod, time.Hour)
		token, err = at.types("kubectl -n kube-system create token konnectivity-agent --audience=system:konnectivity-server --duration=20m --bound-object-kind=Pod --bound-object-name=" + pod.Name)
		w.must(err)
		w.isToken(strings.TrimSpace(token), &pod, 20*time.Minute)
	}
	if len(nodes) != 2 {
		t.Errorf("agents on %v", nodes)
	}
	at.shows("kubectl -n kube-system get events --field-selector reason=SuccessfulCreate", "daemonset/konnectivity-agent")
}

// answers returns once the health port of Konnectivity answers at an address: its Pods have no probe of readiness.
func answers(w *world, address string) {
	w.Helper()
	var status string
	err := wait.PollUntilContextTimeout(w.Context(), 100*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		resp, err := http.Get("http://" + net.JoinHostPort(address, "8134") + "/healthz")
		if err != nil {
			status = err.Error()
			return false, nil
		}
		status = resp.Status
		return resp.StatusCode == http.StatusOK, resp.Body.Close()
	})
	if err != nil {
		w.Fatalf("%s: %s", address, status)
	}
}

// isToken looks at a token, and asks the server about it: it is the Pod's, for Konnectivity's server and nobody else.
func (w *world) isToken(token string, pod *corev1.Pod, lasts time.Duration) {
	w.Helper()
	var claims struct{ Iat, Exp int64 }
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token+"..", ".")[1])
	w.must(err)
	w.must(json.Unmarshal(payload, &claims))
	if is := time.Duration(claims.Exp-claims.Iat) * time.Second; is != lasts {
		w.Errorf("it lasts %v, not %v", is, lasts)
	}
	const audience = "system:konnectivity-server"
	for wanted, good := range map[string]bool{audience: true, "other": false} {
		review, err := w.AuthenticationV1().TokenReviews().Create(w.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{wanted}},
		}, metav1.CreateOptions{})
		w.must(err)
		s := review.Status
		if s.Authenticated != good || good && (s.User.Username != "system:serviceaccount:kube-system:konnectivity-agent" ||
			strings.Join(s.Audiences, " ") != audience || strings.Join(s.User.Extra["authentication.kubernetes.io/pod-name"], " ") != pod.Name) {
			w.Errorf("for %s: %+v", wanted, s)
		}
	}
}

// ownEtc runs a command where /etc is a copy of its own, as on the control-plane node of kubeadm.
const ownEtc = `mount -t tmpfs none "$0"
mkdir "$0/upper" "$0/work"
mount -t overlay -o "lowerdir=/etc,upperdir=$0/upper,workdir=$0/work" none /etc
mkdir -p /etc/kubernetes/pki
touch /etc/kubernetes/pki/apiserver.crt
exec "$@"`

// KON-018 KON-031 KON-032: the documentation's Konnectivity server, from its manifest as it is, is a static Pod with the node's network and
// the priority of the cluster's own. It has the host's files, those that were not there as well, and its ports are taken.
func TestKonnectivityServerIsAStaticPod(t *testing.T) {
	w := whole(t)
	manifest, err := os.ReadFile(filepath.Join(konnectivity, "konnectivity-server.yaml"))
	if err != nil {
		t.Skip("the examples of the documentation are not beside this checkout")
	}
	dir := w.folder(1)
	static := filepath.Join(dir, ".trellis-cluster", "node-1", "manifests")
	w.must(os.MkdirAll(static, 0o700))
	w.must(os.WriteFile(filepath.Join(static, "konnectivity-server.yaml"), manifest, 0o600))
	link := filepath.Join(t.TempDir(), "trellis-cluster")
	w.must(os.Symlink(program(t, ""), link))
	args := append([]string{"--mount", "sh", "-eu", "-c", ownEtc, t.TempDir(), link}, w.upWith(dir, 1, "registry.k8s.io/kas-network-proxy/proxy-server:v0.0.37="+program(t, ""))...)
	p := start(t, exec.Command("unshare", args...))

	pod := w.running("kube-system", "konnectivity-server-node-1")
	if pod.Annotations[corev1.MirrorPodAnnotationKey] == "" || *pod.Spec.Priority != 2_000_000_000 || pod.Status.PodIP != pod.Status.HostIP {
		t.Errorf("%+v", pod)
	}
	for _, address := range []string{"127.0.0.1", pod.Status.HostIP} {
		answers(w, address)
	}
	log, err := w.CoreV1().Pods("kube-system").GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
	w.must(err)
	for _, want := range []string{
		"/proxy-server\n--logtostderr=true\n", "/etc/kubernetes/konnectivity-server/konnectivity-server.socket: <nil>\n",
		"/etc/kubernetes/pki/apiserver.crt: <nil>, read-only file system\n", "/etc/kubernetes/konnectivity-server.conf: <nil>, read-only file system\n",
	} {
		if !strings.Contains(string(log), want) {
			t.Errorf("there is no %q in\n%s", want, log)
		}
	}
	etc := filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "root/etc/kubernetes")
	for name, kind := range map[string]os.FileMode{"konnectivity-server.conf": 0, "konnectivity-server": os.ModeDir, "konnectivity-server/konnectivity-server.socket": os.ModeSocket} {
		if is, err := os.Stat(filepath.Join(etc, name)); err != nil || is.Mode().Type() != kind {
			t.Errorf("%s: %v %v", name, is, err)
		}
	}
	for _, p := range []int32{8132, 8133, 8134} {
		name := fmt.Sprintf("wants-%d", p)
		w.pod(name, port(p))
		if said := w.unplaced(name, corev1.PodReasonUnschedulable); !strings.Contains(said, "didn't have free ports") {
			t.Errorf("%d: %s", p, said)
		}
	}
}
