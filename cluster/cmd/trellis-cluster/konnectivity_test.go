package main

import (
	"encoding/base64"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const konnectivity = "../../../../shared/spec/examples/15-konnectivity"

// The documentation's address of the control plane, and its images.
const (
	controlAddress = "35.225.206.7"
	serverImage    = "registry.k8s.io/kas-network-proxy/proxy-server:v0.0.37"
	agentImage     = "us.gcr.io/k8s-artifacts-prod/kas-network-proxy/proxy-agent:v0.0.37"
)

// behindTunnel is a far cluster with the files of the documentation, up to the kubeconfig of Konnectivity's server.
func behindTunnel(t *testing.T, packages ...string) *far {
	t.Helper()
	f := newFar(t, controlAddress, packages...)
	files, err := filepath.Glob(konnectivity + "/*")
	f.must(err)
	if len(files) == 0 {
		t.Skip("the examples of the documentation are not beside this checkout")
	}
	for _, file := range files {
		f.has(filepath.Base(file), file)
	}
	f.starts()
	return f
}

// serverSays waits until the container of Konnectivity's server has said these words. Its log is there before there is a tunnel to read it by.
func (f *far) serverSays(words string) {
	f.Helper()
	f.comes("cat .trellis-cluster/control-plane/kubelet/logs/kube-system_konnectivity-server-control-plane_*/konnectivity-server-container/*.log", words)
}

// box is a Pod of the nodes that runs a command.
func (f *far) box(name, command string) *corev1.Pod {
	f.Helper()
	f.pod(name, func(p *corev1.Pod) {
		p.Spec.Containers[0].Image, p.Spec.Containers[0].Command = "busybox", []string{"sh", "-c", command}
	})
	return f.running("default", name)
}

func TestKonnectivity(t *testing.T) {
	f := behindTunnel(t)
	f.joins(agentImage+"="+f.dir+"/path/trellis", "busybox=/bin")
	f.shows("sh make-konnectivity-kubeconfig.sh", "")
	f.controls(serverImage + "=" + f.dir + "/path/trellis")
	f.shows("kubectl taint node control-plane node-role.kubernetes.io/control-plane:NoSchedule", "node/control-plane tainted")
	f.shows("mkdir -p /etc/kubernetes/manifests && cp konnectivity-server.yaml /etc/kubernetes/manifests", "")
	f.serverSays("serving")
	f.shows("kubectl apply -f konnectivity-rbac.yaml -f konnectivity-agent.yaml", "clusterrolebinding.rbac.authorization.k8s.io/system:konnectivity-server created\nserviceaccount/konnectivity-agent created\ndaemonset.apps/konnectivity-agent created")
	f.box("box", "echo said; exec sleep 1000000")
	f.comes("kubectl logs box", "said")
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
