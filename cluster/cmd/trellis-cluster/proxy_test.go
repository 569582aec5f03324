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

// bridgeNetfilter is the file of a sysctl. The value 1 applies netfilter's rules also to packets between ports of a
// bridge.
const bridgeNetfilter = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// echoServer is the name of an image. Its program has the same name and runs serveEcho.
const echoServer = "echo-server"

// serveEcho serves HTTP on port 8080. It responds with its host name and the client's address. The path /fetch returns
// the response of another server.
func serveEcho() {
	host, _ := os.Hostname()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprint(w, host, " ", client)
	})
	http.HandleFunc("/fetch", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, fetch(r.URL.Query().Get("url")))
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":8080", nil))
	os.Exit(1)
}

// fetch sends a GET request over a new connection. It returns the body of the response, or the text of the error.
func fetch(url string) string {
	c := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := c.Get(url)
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
		t.Skip("it requires the program nft: apt-get install nftables")
	}
}

// createEchoPod creates a Pod that runs serveEcho, and waits until it is ready.
func (f *fixture) createEchoPod(name string) *corev1.Pod {
	f.Helper()
	f.createPod(name, func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": name}
		c := &p.Spec.Containers[0]
		c.Image, c.Command = echoServer, []string{echoServer}
		get := &corev1.HTTPGetAction{Port: intstr.FromInt32(8080)}
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: get}, PeriodSeconds: 1}
	})
	return f.waitForPod("default", name)
}

// createService creates a Service for the Pods of an app.
func (f *fixture) createService(name, app string, change ...func(*corev1.ServiceSpec)) *corev1.Service {
	f.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": app}, Ports: []corev1.ServicePort{{Port: 80,
			TargetPort: intstr.FromInt32(8080)}},
	}}
	for _, c := range change {
		c(&s.Spec)
	}
	created, err := f.CoreV1().Services("default").Create(f.Context(), s, metav1.CreateOptions{})
	f.must(err)
	return created
}

// waitForResponse sends requests to target from a Pod until a response contains the given text. If from is nil, the
// host sends the requests.
func (f *fixture) waitForResponse(from *corev1.Pod, target, text string) {
	f.Helper()
	request := target
	if from != nil {
		request = "http://" + from.Status.PodIP + ":8080/fetch?url=" + url.QueryEscape(target)
	}
	var output string
	err := wait.PollUntilContextTimeout(f.Context(), 50*time.Millisecond, testTimeout, true,
		func(context.Context) (bool, error) {
			output = fetch(request)
			return strings.Contains(output, text), nil
		})
	if err != nil {
		f.Errorf("GET %s: got %q, want %q", target, output, text)
	}
}

func serviceURL(s *corev1.Service) string { return "http://" + s.Spec.ClusterIP + "/" }

// proxyRules returns kube-proxy's rules in the kernel, or "" if there are none.
func proxyRules() string {
	out, _ := exec.Command("nft", "list", "table", "ip", "kube-proxy").Output() // nft fails if the table does not exist
	return string(out)
}

// TestServiceAddresses checks that cluster IPs and NodePorts work from the host and from Pods, including the Pods of
// the Service. Pods must see the address of the caller. Connections to a Service without endpoints must be refused.
// The rules must remain when kube-proxy stops.
func TestServiceAddresses(t *testing.T) {
	requireNft(t)
	f := newFullFixture(t)
	f.must(os.WriteFile(bridgeNetfilter, []byte("0"), 0)) // kube-proxy must set it to 1
	self, err := os.Executable()
	f.must(err)
	up := f.startNodes(1, echoServer+"="+self)
	one, two := f.createEchoPod("one"), f.createEchoPod("two")
	mine, other := f.createService("mine", "one"), f.createService("other", "two",
		func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort })

	f.waitForResponse(one, serviceURL(other), "two "+one.Status.PodIP)
	f.waitForResponse(nil, serviceURL(other), "two ")
	f.waitForResponse(one, serviceURL(mine), "one ")
	f.waitForResponse(nil, fmt.Sprintf("http://%s:%d/", two.Status.HostIP, other.Spec.Ports[0].NodePort), "two ")
	// The relay of the node must respond. kube-proxy must not reject the connection.
	f.waitForResponse(one, "https://"+f.kubernetesIP()+"/version", `"gitVersion"`)

	f.createService("headless", "two", func(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone })
	sticky := f.createService("sticky", "two",
		func(s *corev1.ServiceSpec) { s.SessionAffinity = corev1.ServiceAffinityClientIP })
	f.waitForResponse(one, serviceURL(sticky), "two ")
	if rules := proxyRules(); !strings.Contains(rules, "affinity-") || strings.Contains(rules, "headless") {
		t.Errorf("got the rules\n%s", rules)
	}

	f.must(f.CoreV1().Pods("default").Delete(t.Context(), "two", metav1.DeleteOptions{}))
	f.waitForResponse(one, serviceURL(other), "connection refused")
	f.waitForResponse(nil, serviceURL(other), "connection refused")

	cleanup := startProgram(t, "trellis-cluster", "proxy", "--cleanup")
	if code := cleanup.wait(); code != 1 || !strings.Contains(cleanup.output(),
		"another kube-proxy of trellis-cluster runs on this machine") {
		t.Errorf("second kube-proxy on this machine: got exit code %d and %s", code, cleanup.output())
	}
	if code := up.terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	f.waitForResponse(nil, serviceURL(mine), "one ")
	if code := startProgram(t, "trellis-cluster", "proxy", "--cleanup").wait(); code != 0 || proxyRules() != "" {
		t.Errorf("proxy --cleanup: got exit code %d and the rules\n%s", code, proxyRules())
	}
}

func (f *fixture) kubernetesIP() string {
	f.Helper()
	s, err := f.CoreV1().Services("default").Get(f.Context(), "kubernetes", metav1.GetOptions{})
	f.must(err)
	return s.Spec.ClusterIP
}

// TestServiceAddressesWithoutBridgeNetfilter checks that cluster IPs also work if the kernel cannot apply the rules to
// packets within a bridge. kube-proxy then masquerades all connections.
func TestServiceAddressesWithoutBridgeNetfilter(t *testing.T) {
	requireNft(t)
	f := newFullFixture(t)
	f.must(os.WriteFile(bridgeNetfilter, []byte("0"), 0))
	t.Cleanup(func() { f.must(os.WriteFile(bridgeNetfilter, []byte("1"), 0)) })
	self, err := os.Executable()
	f.must(err)
	f.must(syscall.Mount("/dev/full", bridgeNetfilter, "", syscall.MS_BIND, "")) // makes writes fail
	unmount := sync.OnceFunc(func() { f.must(syscall.Unmount(bridgeNetfilter, 0)) })
	t.Cleanup(unmount)
	f.startNodes(1, echoServer+"="+self)
	one, _ := f.createEchoPod("one"), f.createEchoPod("two")
	mine, other := f.createService("mine", "one"), f.createService("other", "two")
	f.waitForResponse(one, serviceURL(other), "two ")
	f.waitForResponse(one, serviceURL(mine), "one ")
}

// TestKubernetesServiceAddress starts an API server that listens on all interfaces, so that it is an endpoint of the
// Service kubernetes. It checks that Pods and the host reach the address of this Service through kube-proxy.
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

// TestNoKubeProxy runs `trellis-cluster up` with a PATH that does not contain nft. It checks that the command logs the
// reason and runs no kube-proxy. Pods must still reach the API server.
func TestNoKubeProxy(t *testing.T) {
	f := newFullFixture(t)
	path := t.TempDir()
	for _, program := range []string{"mount", "umount", "cat", "curl"} { // programs that the node and its Pod use
		at, err := exec.LookPath(program)
		f.must(err)
		f.must(os.Symlink(at, filepath.Join(path, program)))
	}
	t.Setenv("PATH", path)
	up := f.startNodes(1, "busybox=/bin")
	up.waitForOutput(1, "kube-proxy does not run: cluster IPs of Services are not routed",
		"could not find nftables binary", "the package nftables")
	f.checkPodReachesServer("client")
}
