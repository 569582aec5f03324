package nodes_test

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/fixture/dns"
	"github.com/trellis-k8s/trellis/internal/proxy/nodes"
)

// A request to a Pod arrives with its method, path, query and body, and the answer is what the Pod says: a redirect is not followed,
// links lead through this server.
func TestPod(t *testing.T) {
	w := newWorld(t)
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		if resp, got := w.ask(method, w.serve("p:80", &core.PodProxyOptions{Path: "/a b/"})+"/proxy/a%20b/?x=y", "body"); resp.StatusCode != 200 || got != method+" /a%20b/?x=y body" {
			t.Errorf("%s: %d %q", method, resp.StatusCode, got)
		}
	}
	resp, _ := w.ask("GET", w.serve("p", &core.PodProxyOptions{Path: "/moved"})+"/proxy/moved", "")
	if resp.StatusCode != http.StatusFound || resp.Header.Get("Location") != "/proxy/elsewhere" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	w.want(w.serve("p", &core.PodProxyOptions{Path: "/page"})+"/proxy/page", 200, `<a href="/proxy/next">next</a>`)
	w.want(w.serve("none", &core.PodProxyOptions{}), 404, `pods "none" not found`)
	w.want(w.serve("a:b:c:d", &core.PodProxyOptions{}), 400, `invalid pod request "a:b:c:d"`)
	for _, address := range []string{"127.0.0.1", "169.254.169.254", "::1", "0.0.0.0", ""} {
		w.objects["pods/ns/p"].(*core.Pod).Status.PodIPs[0].IP = address
		w.want(w.serve("p", &core.PodProxyOptions{}), 400, "address not allowed")
	}
}

// What a client says to prove who it is, and what a proxy before this server says, stays here.
func TestCredentialsStay(t *testing.T) {
	w := newWorld(t)
	secrets := []string{"Authorization: Bearer secret", "X-Remote-User: admin", "X-Remote-Group: system:masters", "X-Remote-Extra-A: b", "X_Remote_User: admin", "X-Kept: yes"}
	for name, url := range map[string]string{
		"pod": w.serve("p", &core.PodProxyOptions{Path: "/"}) + "/", "node": w.serve("n", &core.NodeProxyOptions{Path: "/"}) + "/",
		"log": w.serve("p", &core.PodLogOptions{}), "exec": w.serve("p", &core.PodExecOptions{Stdout: true, Command: []string{"true"}}),
		"portforward": w.serve("p", &core.PodPortForwardOptions{}),
	} {
		headers := secrets
		if name == "exec" || name == "portforward" {
			headers = append(headers, "Connection: Upgrade", "Upgrade: SPDY/3.1", "X-Stream-Protocol-Version: v4.channel.k8s.io", "X-Stream-Protocol-Version: portforward.k8s.io")
		}
		w.ask("POST", url, "", headers...)
		for header := range w.heard().Header {
			if strings.Contains(strings.ReplaceAll(header, "_", "-"), "Remote-") || header == "Authorization" {
				t.Errorf("%s: %s is passed on", name, header)
			}
		}
		if kept := w.heard().Header.Get("X-Kept"); kept != "yes" && name != "log" {
			t.Errorf("%s: nothing is passed on: %v", name, w.heard().Header)
		}
	}
}

// A kubelet has to have a certificate of the CA for its address, and sees that of this server. Who asks for a log may do without.
func TestCertificates(t *testing.T) {
	w := newWorld(t)
	w.want(w.serve("p", &core.PodLogOptions{}), 200, "log of ns/p/c\nasked with \"\"")
	if of := w.heard().TLS.PeerCertificates[0].Subject.CommonName; of != "kube-apiserver-kubelet-client" {
		t.Errorf("it is asked by %s", of)
	}
	w = newWorld(t, func(c *nodes.Config) { c.Kubelet.CAs = x509.NewCertPool() })
	exec := []string{"Connection: Upgrade", "Upgrade: SPDY/3.1", "X-Stream-Protocol-Version: v4.channel.k8s.io"}
	for name, url := range map[string]string{
		"log": w.serve("p", &core.PodLogOptions{}), "exec": w.serve("p", &core.PodExecOptions{Stdout: true, Command: []string{"true"}}),
		"node": w.serve("n", &core.NodeProxyOptions{Path: "/"}) + "/",
	} {
		if resp, text := w.ask("GET", url, "", exec...); resp.StatusCode < 500 || !strings.Contains(text, "x509: certificate signed by unknown authority") {
			t.Errorf("%s: %d %s", name, resp.StatusCode, text)
		}
	}
	w.want(w.serve("p", &core.PodLogOptions{InsecureSkipTLSVerifyBackend: true}), 200, "log of ns/p/c\nasked with \"\"")
}

// KON-053: a log that breaks off, as where a tunnel does, does not end as if it were complete.
func TestLogThatBreaksOff(t *testing.T) {
	w := newWorld(t)
	w.objects["pods/ns/p"].(*core.Pod).Spec.Containers[0].Name = "cut"
	for _, follow := range []bool{false, true} {
		resp, err := http.Get(w.serve("p", &core.PodLogOptions{Follow: follow}))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if !strings.HasPrefix(string(text), "log of ns/p/cut\n") || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("follow=%t: %q, %v, want the beginning and an unexpected end", follow, text, err)
		}
	}
}

func TestLogOptions(t *testing.T) {
	w := newWorld(t)
	lines, bytes, none := int64(7), int64(9), int64(0)
	w.want(w.serve("p", &core.PodLogOptions{Container: "c", Previous: true, Timestamps: true, TailLines: &lines, LimitBytes: &bytes, SinceSeconds: &lines}), 200,
		"log of ns/p/c\nasked with \"limitBytes=9&previous=true&sinceSeconds=7&tailLines=7&timestamps=true\"")
	w.want(w.serve("p", &core.PodLogOptions{LimitBytes: &none}), 422, `PodLogOptions "p" is invalid: limitBytes: Invalid value: 0: must be greater than 0`)
	w.want(w.serve("p", &core.PodLogOptions{Container: "x"}), 400, "container x is not valid for pod p")
	of := w.objects["pods/ns/p"].(*core.Pod)
	of.Spec.Containers[0].Name = "broken"
	w.want(w.serve("p", &core.PodLogOptions{}), 500, "Internal error occurred: the container is broken")
	of.Spec.NodeName = ""
	w.want(w.serve("p", &core.PodLogOptions{}), 204, "")
	w.want(w.serve("p", &core.PodExecOptions{Command: []string{"x"}}), 400, "pod p does not have a host assigned")
	of.Spec.NodeName = "gone"
	w.want(w.serve("p", &core.PodPortForwardOptions{}), 404, `nodes "gone" not found`)
}

// CVE-2022-3294: a node is not to be this machine, or what only this machine and its link reach.
func TestNodeAddress(t *testing.T) {
	w := newWorld(t)
	w.want(w.serve("n", &core.NodeProxyOptions{Path: "/healthz"})+"/healthz", 200, "GET /healthz")
	if last := w.dialled[len(w.dialled)-1]; last != nodeIP+":10250" {
		t.Errorf("dialled %s", last)
	}
	w.dialled = nil
	for _, address := range []string{"127.0.0.1", "127.8.9.10", "::1", "169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1", "localhost", "::ffff:127.0.0.1"} {
		w.node(address)
		for _, name := range []string{"n", "n:10250", "https:n:22", "http:n:80"} {
			if resp, text := w.ask("GET", w.serve(name, &core.NodeProxyOptions{Path: "/"})+"/", ""); resp.StatusCode != 400 || strings.TrimSpace(text) != "address not allowed" {
				t.Errorf("%s, %s: %d %s", address, name, resp.StatusCode, text)
			}
		}
	}
	if len(w.dialled) > 0 {
		t.Errorf("dialled %q", w.dialled)
	}
}

// CVE-2020-8562: a name that stands for another address once it has been judged is judged again as it is dialled.
func TestNodeNameThatChanges(t *testing.T) {
	loopback := listen(t)
	defer loopback.Close()
	go func() {
		for conn, err := loopback.Accept(); err == nil; conn, err = loopback.Accept() {
			_ = conn.Close()
		}
	}()
	var asked atomic.Int64
	was := net.DefaultResolver
	defer func() { net.DefaultResolver = was }()
	net.DefaultResolver = dns.Resolver(func(string) netip.Addr {
		if asked.Add(1) <= 2 { // for both families
			return netip.MustParseAddr(nodeIP)
		}
		return netip.MustParseAddr("127.0.0.1")
	})
	w := newWorld(t, func(c *nodes.Config) { c.Dialer = &egress.Dialer{} })
	w.node("rebinds.example.com.")
	_, port, _ := net.SplitHostPort(loopback.Addr().String())
	for _, headers := range [][]string{nil, {"Connection: Upgrade", "Upgrade: websocket"}} {
		for _, name := range []string{"n", "http:n:" + port, "https:n:" + port} {
			asked.Store(0)
			resp, text := w.ask("GET", w.serve(name, &core.NodeProxyOptions{Path: "/"})+"/", "", headers...)
			if resp.StatusCode < 500 || !strings.Contains(text, "cannot connect to 127.0.0.1: it is a loopback address") {
				t.Errorf("%s: %d %s", name, resp.StatusCode, text)
			}
			if asked.Load() < 4 {
				t.Errorf("%s was looked up %d times", name, asked.Load())
			}
		}
	}
}

// A Service is a port of it, by number or name, behind which is a Pod: what an EndpointSlice says of others is not believed
// (CVE-2021-25740).
func TestService(t *testing.T) {
	w := newWorld(t)
	w.objects["services/ns/s"] = &core.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
		Spec:       core.ServiceSpec{Ports: []core.ServicePort{{Name: "web", Port: 80}, {Name: "other", Port: 81}}},
	}
	w.slice("another", "web", 1, podIP+"=p")
	w.slice("s", "web", 8080, "203.0.113.9=p", podIP, podIP+"=none", podIP+"=p")
	for _, name := range []string{"s:80", "s:web", "http:s:web", "http:s:80"} {
		for range 8 {
			w.want(w.serve(name, &core.ServiceProxyOptions{Path: "/x"})+"/x", 200, "GET /x")
		}
	}
	for _, address := range w.dialled {
		if address != podIP+":8080" {
			t.Errorf("dialled %s", address)
		}
	}
	w.want(w.serve("s:82", &core.ServiceProxyOptions{}), 503, `no service port 82 found for service "s"`)
	w.want(w.serve("s:other", &core.ServiceProxyOptions{}), 503, `no endpoints available for service "s"`)
	w.want(w.serve("s", &core.ServiceProxyOptions{}), 503, `no endpoints available for service "s"`)
	w.want(w.serve("none:80", &core.ServiceProxyOptions{}), 404, `services "none" not found`)
	w.want(w.serve("a:b:c:d", &core.ServiceProxyOptions{}), 400, `invalid service request "a:b:c:d"`)
	w.objects["pods/ns/p"].(*core.Pod).Status.PodIPs[0].IP = "203.0.113.9"
	w.slices = nil
	w.slice("s", "web", 8080, "127.0.0.1=p")
	w.objects["pods/ns/p"].(*core.Pod).Status.PodIPs[0].IP = "127.0.0.1"
	if resp, text := w.ask("GET", w.serve("s:80", &core.ServiceProxyOptions{Path: "/"})+"/", ""); resp.StatusCode != 503 || !strings.Contains(text, "cannot connect to 127.0.0.1: it is a loopback address") {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}

// CVE-2018-1002105: a connection that is not upgraded ends with the answer, and takes no further request to the kubelet.
func TestFailedUpgrade(t *testing.T) {
	w := newWorld(t)
	url := w.serve("p", &core.PodExecOptions{Command: []string{"true"}}) // without a stream, which kubelets refuse
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nGET /pods HTTP/1.1\r\nHost: x\r\n\r\n")
	var said strings.Builder
	if _, err := copyAll(&said, conn); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(said.String(), "HTTP/1.1 400") || strings.Count(said.String(), "HTTP/1.1") != 1 {
		t.Errorf("%q", said.String())
	}
	for _, r := range w.asked {
		if r.URL.Path == "/pods" {
			t.Error("the kubelet has got the second request")
		}
	}
}

// CVE-2020-8559: a kubelet cannot send an upgrade elsewhere. Neither the server nor its client follows the redirect.
func TestRedirectOfUpgrade(t *testing.T) {
	w := newWorld(t)
	w.objects["pods/ns/p"].(*core.Pod).Spec.Containers[0].Name = "moved"
	for _, protocol := range []string{"SPDY/3.1", "websocket"} {
		resp, text := w.ask("GET", w.serve("p", &core.PodExecOptions{Stdout: true, Command: []string{"true"}}), "", "Connection: Upgrade", "Upgrade: "+protocol)
		if resp.StatusCode < 500 || resp.Header.Get("Location") != "" || !strings.Contains(text, "invalid upgrade response: status code 302") {
			t.Errorf("%s: %d %v %s", protocol, resp.StatusCode, resp.Header, text)
		}
		if path := w.heard().URL.Path; path != "/exec/ns/p/moved" {
			t.Errorf("%s: the kubelet was asked for %s", protocol, path)
		}
	}
}
