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

// bridgeNetfilter says whether the kernel translates also what a bridge passes on.
const bridgeNetfilter = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// echoServer is the name under which the test's program is what Pods run here: a server that says which Pod it is and who has asked,
// and asks others.
const echoServer = "answering"

func serveEcho() {
	host, _ := os.Hostname()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		from, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprint(w, host, " ", from)
	})
	http.HandleFunc("/ask", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, fetch(r.URL.Query().Get("of"))) })
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":8080", nil))
	os.Exit(1)
}

// fetch is what somebody answers over a connection of its own, or why not.
func fetch(of string) string {
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

func requireNft(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("it needs the program nft: apt-get install nftables")
	}
}

// createEchoPod starts a Pod that does.
func (f *fixture) createEchoPod(name string) *corev1.Pod {
	f.Helper()
	f.createPod(name, func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": name}
		c := &p.Spec.Containers[0]
		c.Image, c.Command = echoServer, []string{echoServer}
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(8080)}}, PeriodSeconds: 1}
	})
	return f.waitForPod("default", name)
}

// createService makes one in front of Pods.
func (f *fixture) createService(name, app string, change ...func(*corev1.ServiceSpec)) *corev1.Service {
	f.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": app}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}}
	for _, c := range change {
		c(&s.Spec)
	}
	made, err := f.CoreV1().Services("default").Create(f.Context(), s, metav1.CreateOptions{})
	f.must(err)
	return made
}

// waitForResponse returns once the host, or a Pod, gets an answer that has these words.
func (f *fixture) waitForResponse(from *corev1.Pod, of, words string) {
	f.Helper()
	through := of
	if from != nil {
		through = "http://" + from.Status.PodIP + ":8080/ask?of=" + url.QueryEscape(of)
	}
	var output string
	err := wait.PollUntilContextTimeout(f.Context(), 50*time.Millisecond, testTimeout, true, func(context.Context) (bool, error) {
		output = fetch(through)
		return strings.Contains(output, words), nil
	})
	if err != nil {
		f.Errorf("%s says %q, want %q", of, output, words)
	}
}

func serviceURL(s *corev1.Service) string { return "http://" + s.Spec.ClusterIP + "/" }

// proxyRules is what kube-proxy keeps in the kernel; "" is nothing.
func proxyRules() string {
	out, _ := exec.Command("nft", "list", "table", "ip", "kube-proxy").Output() // it fails where there is none
	return string(out)
}

// The address of a Service answers Pods, also those that are behind it, and the host; so does a NodePort. Pods see who calls. Where
// nobody is left, callers are refused. The rules outlive their proxy, as Pods do.
func TestServiceAddresses(t *testing.T) {
	requireNft(t)
	f := newFullFixture(t)
	f.must(os.WriteFile(bridgeNetfilter, []byte("0"), 0)) // what a bridge passes on goes by the translation again once there is a proxy
	self, err := os.Executable()
	f.must(err)
	up := f.startNodes(1, echoServer+"="+self)
	one, two := f.createEchoPod("one"), f.createEchoPod("two")
	mine, other := f.createService("mine", "one"), f.createService("other", "two", func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort })

	f.waitForResponse(one, serviceURL(other), "two "+one.Status.PodIP)
	f.waitForResponse(nil, serviceURL(other), "two ")
	f.waitForResponse(one, serviceURL(mine), "one ")
	f.waitForResponse(nil, fmt.Sprintf("http://%s:%d/", two.Status.HostIP, other.Spec.Ports[0].NodePort), "two ")
	f.waitForResponse(one, "https://"+f.kubernetesIP()+"/version", `"gitVersion"`) // the relay's: it is not the proxy's to refuse

	f.createService("headless", "two", func(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone })
	sticky := f.createService("sticky", "two", func(s *corev1.ServiceSpec) { s.SessionAffinity = corev1.ServiceAffinityClientIP })
	f.waitForResponse(one, serviceURL(sticky), "two ")
	if rules := proxyRules(); !strings.Contains(rules, "affinity-") || strings.Contains(rules, "headless") {
		t.Errorf("the rules are\n%s", rules)
	}

	f.must(f.CoreV1().Pods("default").Delete(t.Context(), "two", metav1.DeleteOptions{}))
	f.waitForResponse(one, serviceURL(other), "connection refused")
	f.waitForResponse(nil, serviceURL(other), "connection refused")

	cleanup := startProgram(t, "trellis-cluster", "proxy", "--cleanup")
	if code := cleanup.wait(); code != 1 || !strings.Contains(cleanup.output(), "another kube-proxy of trellis-cluster runs on this machine") {
		t.Errorf("a second proxy on this machine: %d, %s", code, cleanup.output())
	}
	if code := up.terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	f.waitForResponse(nil, serviceURL(mine), "one ")
	if code := startProgram(t, "trellis-cluster", "proxy", "--cleanup").wait(); code != 0 || proxyRules() != "" {
		t.Errorf("exit code %d; of the rules there are\n%s", code, proxyRules())
	}
}

func (f *fixture) kubernetesIP() string {
	f.Helper()
	s, err := f.CoreV1().Services("default").Get(f.Context(), "kubernetes", metav1.GetOptions{})
	f.must(err)
	return s.Spec.ClusterIP
}

// Where nothing has what a bridge passes on go by the translation, answers do so by the address of the bridge.
func TestServiceAddressesWithoutBridgeNetfilter(t *testing.T) {
	requireNft(t)
	f := newFullFixture(t)
	f.must(os.WriteFile(bridgeNetfilter, []byte("0"), 0))
	t.Cleanup(func() { f.must(os.WriteFile(bridgeNetfilter, []byte("1"), 0)) })
	self, err := os.Executable()
	f.must(err)
	f.must(syscall.Mount("/dev/full", bridgeNetfilter, "", syscall.MS_BIND, "")) // which takes no writes
	unmount := sync.OnceFunc(func() { f.must(syscall.Unmount(bridgeNetfilter, 0)) })
	t.Cleanup(unmount)
	f.startNodes(1, echoServer+"="+self)
	one, _ := f.createEchoPod("one"), f.createEchoPod("two")
	mine, other := f.createService("mine", "one"), f.createService("other", "two")
	f.waitForResponse(one, serviceURL(other), "two ")
	f.waitForResponse(one, serviceURL(mine), "one ")
}

// A server that others reach is an endpoint of the Service kubernetes: kube-proxy has its address answer, on the host as well.
func TestKubernetesServiceAddress(t *testing.T) {
	requireNft(t)
	f := newFullFixture(t, testserver.With(func(c *apiserver.Config) { c.Address = ":0" }))
	self, err := os.Executable()
	f.must(err)
	f.startNodes(1, echoServer+"="+self)
	version := "https://" + f.kubernetesIP() + "/version"
	f.waitForResponse(nil, version, `"gitVersion"`)
	f.waitForResponse(f.createEchoPod("one"), version, `"gitVersion"`)
}

// Without the program nft there is no kube-proxy, which the log says. Pods find the API server all the same.
func TestNoKubeProxy(t *testing.T) {
	f := newFullFixture(t)
	path := t.TempDir()
	for _, program := range []string{"mount", "umount", "cat", "curl"} { // for the node, and its Pod
		at, err := exec.LookPath(program)
		f.must(err)
		f.must(os.Symlink(at, filepath.Join(path, program)))
	}
	t.Setenv("PATH", path)
	up := f.startNodes(1, "busybox=/bin")
	up.waitForOutput(1, "No kube-proxy: cluster IPs of Services are not routed", "could not find nftables binary", "the package nftables")
	f.checkPodReachesServer("asks")
}
