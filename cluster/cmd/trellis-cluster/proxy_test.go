package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/testserver"
)

// bridged says whether the kernel translates also what a bridge passes on.
const bridged = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// answering is the name under which the test's program is what Pods run here: a server that says which Pod it is and who has asked,
// and asks others.
const answering = "answering"

func answer() {
	host, _ := os.Hostname()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		from, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprint(w, host, " ", from)
	})
	http.HandleFunc("/ask", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, ask(r.URL.Query().Get("of"))) })
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":8080", nil))
	os.Exit(1)
}

// ask is what somebody answers over a connection of its own, or why not.
func ask(of string) string {
	c := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := c.Get(of)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

func needNft(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("it needs the program nft: apt-get install nftables")
	}
}

// answers starts a Pod that does.
func (w *world) answers(name string) *corev1.Pod {
	w.Helper()
	w.pod(name, func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": name}
		c := &p.Spec.Containers[0]
		c.Image, c.Command = answering, []string{answering}
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(8080)}}, PeriodSeconds: 1}
	})
	return w.running("default", name)
}

// service makes one in front of Pods.
func (w *world) service(name, app string, change ...func(*corev1.ServiceSpec)) *corev1.Service {
	w.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": app}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}}
	for _, c := range change {
		c(&s.Spec)
	}
	made, err := w.CoreV1().Services("default").Create(w.Context(), s, metav1.CreateOptions{})
	w.must(err)
	return made
}

// hears returns once the host, or a Pod, gets an answer that has these words.
func (w *world) hears(from *corev1.Pod, of, words string) {
	w.Helper()
	through := of
	if from != nil {
		through = "http://" + from.Status.PodIP + ":8080/ask?of=" + url.QueryEscape(of)
	}
	var said string
	err := wait.PollUntilContextTimeout(w.Context(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		said = ask(through)
		return strings.Contains(said, words), nil
	})
	if err != nil {
		w.Errorf("%s says %q, want %q", of, said, words)
	}
}

func at(s *corev1.Service) string { return "http://" + s.Spec.ClusterIP + "/" }

// table is what kube-proxy keeps in the kernel; "" is nothing.
func table() string {
	out, _ := exec.Command("nft", "list", "table", "ip", "kube-proxy").Output() // it fails where there is none
	return string(out)
}

// The address of a Service answers Pods, also those that are behind it, and the host; so does a NodePort. Pods see who calls. Where
// nobody is left, callers are refused. The rules outlive their proxy, as Pods do.
func TestServicesAnswer(t *testing.T) {
	needNft(t)
	w := whole(t)
	w.must(os.WriteFile(bridged, []byte("0"), 0)) // what a bridge passes on goes by the translation again once there is a proxy
	self, err := os.Executable()
	w.must(err)
	up := w.real(1, answering+"="+self)
	one, two := w.answers("one"), w.answers("two")
	mine, other := w.service("mine", "one"), w.service("other", "two", func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort })

	w.hears(one, at(other), "two "+one.Status.PodIP)
	w.hears(nil, at(other), "two ")
	w.hears(one, at(mine), "one ")
	w.hears(nil, fmt.Sprintf("http://%s:%d/", two.Status.HostIP, other.Spec.Ports[0].NodePort), "two ")
	w.hears(one, "https://"+w.kubernetesIP()+"/version", `"gitVersion"`) // the relay's: it is not the proxy's to refuse

	w.service("headless", "two", func(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone })
	sticky := w.service("sticky", "two", func(s *corev1.ServiceSpec) { s.SessionAffinity = corev1.ServiceAffinityClientIP })
	w.hears(one, at(sticky), "two ")
	if rules := table(); !strings.Contains(rules, "affinity-") || strings.Contains(rules, "headless") {
		t.Errorf("the rules are\n%s", rules)
	}

	w.must(w.CoreV1().Pods("default").Delete(t.Context(), "two", metav1.DeleteOptions{}))
	w.hears(one, at(other), "connection refused")
	w.hears(nil, at(other), "connection refused")

	cleanup := begin(t, "trellis-cluster", "proxy", "--cleanup")
	if code := cleanup.exit(); code != 1 || !strings.Contains(cleanup.said(), "another kube-proxy of trellis-cluster runs on this machine") {
		t.Errorf("a second proxy on this machine: %d, %s", code, cleanup.said())
	}
	if code := up.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	w.hears(nil, at(mine), "one ")
	if code := begin(t, "trellis-cluster", "proxy", "--cleanup").exit(); code != 0 || table() != "" {
		t.Errorf("exit code %d; of the rules there are\n%s", code, table())
	}
}

func (w *world) kubernetesIP() string {
	w.Helper()
	s, err := w.CoreV1().Services("default").Get(w.Context(), "kubernetes", metav1.GetOptions{})
	w.must(err)
	return s.Spec.ClusterIP
}

// Where nothing has what a bridge passes on go by the translation, answers do so by the address of the bridge.
func TestServicesAnswerWithoutBridgeNetfilter(t *testing.T) {
	needNft(t)
	w := whole(t)
	w.must(os.WriteFile(bridged, []byte("0"), 0))
	t.Cleanup(func() { w.must(os.WriteFile(bridged, []byte("1"), 0)) })
	self, err := os.Executable()
	w.must(err)
	w.must(syscall.Mount("/dev/full", bridged, "", syscall.MS_BIND, "")) // which takes no writes
	unmount := sync.OnceFunc(func() { w.must(syscall.Unmount(bridged, 0)) })
	t.Cleanup(unmount)
	w.real(1, answering+"="+self)
	one, _ := w.answers("one"), w.answers("two")
	mine, other := w.service("mine", "one"), w.service("other", "two")
	w.hears(one, at(other), "two ")
	w.hears(one, at(mine), "one ")
}

// A server that others reach is an endpoint of the Service kubernetes: kube-proxy has its address answer, on the host as well.
func TestKubernetesIsAService(t *testing.T) {
	needNft(t)
	w := whole(t, testserver.With(func(c *apiserver.Config) { c.Address = ":0" }))
	self, err := os.Executable()
	w.must(err)
	w.real(1, answering+"="+self)
	version := "https://" + w.kubernetesIP() + "/version"
	w.hears(nil, version, `"gitVersion"`)
	w.hears(w.answers("one"), version, `"gitVersion"`)
}

// Without the program nft there is no kube-proxy, which the log says. Pods find the API server all the same.
func TestNoKubeProxy(t *testing.T) {
	w := whole(t)
	path := t.TempDir()
	for _, program := range []string{"mount", "umount", "cat", "curl"} { // for the node, and its Pod
		at, err := exec.LookPath(program)
		w.must(err)
		w.must(os.Symlink(at, filepath.Join(path, program)))
	}
	t.Setenv("PATH", path)
	up := w.real(1, "busybox=/bin")
	up.says(1, "No kube-proxy: cluster IPs of Services are not routed", "could not find nftables binary", "the package nftables")
	w.findsTheServer("asks")
}
