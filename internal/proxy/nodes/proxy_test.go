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

// TestPod checks that a request reaches a Pod with its method, path, query and body, and that the Pod's response is
// returned. Redirects are not followed, and links lead through this server.
func TestPod(t *testing.T) {
	c := newCluster(t)
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		if resp, got := c.do(method, c.serve("p:80", &core.PodProxyOptions{Path: "/a b/"})+"/proxy/a%20b/?x=y",
			"body"); resp.StatusCode != 200 || got != method+" /a%20b/?x=y body" {
			t.Errorf("%s: %d %q", method, resp.StatusCode, got)
		}
	}
	resp, _ := c.do("GET", c.serve("p", &core.PodProxyOptions{Path: "/moved"})+"/proxy/moved", "")
	if resp.StatusCode != http.StatusFound || resp.Header.Get("Location") != "/proxy/elsewhere" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	c.want(c.serve("p", &core.PodProxyOptions{Path: "/page"})+"/proxy/page", 200, `<a href="/proxy/next">next</a>`)
	c.want(c.serve("none", &core.PodProxyOptions{}), 404, `pods "none" not found`)
	c.want(c.serve("a:b:c:d", &core.PodProxyOptions{}), 400, `invalid pod request "a:b:c:d"`)
	for _, address := range []string{"127.0.0.1", "169.254.169.254", "::1", "0.0.0.0", ""} {
		c.objects["pods/ns/p"].(*core.Pod).Status.PodIPs[0].IP = address
		c.want(c.serve("p", &core.PodProxyOptions{}), 400, "address not allowed")
	}
}

// TestCredentialsStay checks that the client's credentials and identity headers are not forwarded.
func TestCredentialsStay(t *testing.T) {
	c := newCluster(t)
	secrets := []string{"Authorization: Bearer secret", "X-Remote-User: admin", "X-Remote-Group: system:masters",
		"X-Remote-Extra-A: b", "X_Remote_User: admin", "X-Other: yes"}
	for name, url := range map[string]string{
		"pod": c.serve("p", &core.PodProxyOptions{Path: "/"}) +
			"/", "node": c.serve("n", &core.NodeProxyOptions{Path: "/"}) + "/",
		"log": c.serve("p", &core.PodLogOptions{}), "exec": c.serve("p",
			&core.PodExecOptions{Stdout: true, Command: []string{"true"}}),
		"portforward": c.serve("p", &core.PodPortForwardOptions{}),
	} {
		headers := secrets
		if name == "exec" || name == "portforward" {
			headers = append(headers, "Connection: Upgrade", "Upgrade: SPDY/3.1",
				"X-Stream-Protocol-Version: v4.channel.k8s.io", "X-Stream-Protocol-Version: portforward.k8s.io")
		}
		c.do("POST", url, "", headers...)
		for header := range c.lastRequest().Header {
			if strings.Contains(strings.ReplaceAll(header, "_", "-"), "Remote-") || header == "Authorization" {
				t.Errorf("%s: %s was forwarded", name, header)
			}
		}
		if other := c.lastRequest().Header.Get("X-Other"); other != "yes" && name != "log" {
			t.Errorf("%s: X-Other was not forwarded: %v", name, c.lastRequest().Header)
		}
	}
}

// TestCertificates checks that a kubelet must have a certificate of the CA for its address, and that it receives this
// server's client certificate. A request for a log may skip the verification.
func TestCertificates(t *testing.T) {
	c := newCluster(t)
	c.want(c.serve("p", &core.PodLogOptions{}), 200, "log of ns/p/c\nasked with \"\"")
	if of := c.lastRequest().TLS.PeerCertificates[0].Subject.CommonName; of != "kube-apiserver-kubelet-client" {
		t.Errorf("the kubelet received the certificate of %s", of)
	}
	c = newCluster(t, func(c *nodes.Config) { c.Kubelet.CAs = x509.NewCertPool() })
	exec := []string{"Connection: Upgrade", "Upgrade: SPDY/3.1", "X-Stream-Protocol-Version: v4.channel.k8s.io"}
	for name, url := range map[string]string{
		"log": c.serve("p", &core.PodLogOptions{}), "exec": c.serve("p",
			&core.PodExecOptions{Stdout: true, Command: []string{"true"}}),
		"node": c.serve("n", &core.NodeProxyOptions{Path: "/"}) + "/",
	} {
		if resp, text := c.do("GET", url, "", exec...); resp.StatusCode < 500 ||
			!strings.Contains(text, "x509: certificate signed by unknown authority") {
			t.Errorf("%s: %d %s", name, resp.StatusCode, text)
		}
	}
	c.want(c.serve("p", &core.PodLogOptions{InsecureSkipTLSVerifyBackend: true}), 200, "log of ns/p/c\nasked with \"\"")
}

// TestLogThatBreaksOff checks that the response breaks off when the log breaks off, for example because a tunnel has
// failed. KON-053
func TestLogThatBreaksOff(t *testing.T) {
	c := newCluster(t)
	c.objects["pods/ns/p"].(*core.Pod).Spec.Containers[0].Name = "cut"
	for _, follow := range []bool{false, true} {
		resp, err := http.Get(c.serve("p", &core.PodLogOptions{Follow: follow}))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if !strings.HasPrefix(string(text), "log of ns/p/cut\n") || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("follow=%t: %q, %v, want the beginning and io.ErrUnexpectedEOF", follow, text, err)
		}
	}
}

// TestLogOptions checks the options of a log request, and the errors of requests to Pods without a container or node.
func TestLogOptions(t *testing.T) {
	c := newCluster(t)
	lines, bytes, none := int64(7), int64(9), int64(0)
	c.want(c.serve("p", &core.PodLogOptions{Container: "c", Previous: true, Timestamps: true, TailLines: &lines,
		LimitBytes: &bytes, SinceSeconds: &lines}), 200,
		"log of ns/p/c\nasked with \"limitBytes=9&previous=true&sinceSeconds=7&tailLines=7&timestamps=true\"")
	c.want(c.serve("p", &core.PodLogOptions{LimitBytes: &none}), 422,
		`PodLogOptions "p" is invalid: limitBytes: Invalid value: 0: must be greater than 0`)
	c.want(c.serve("p", &core.PodLogOptions{Container: "x"}), 400, "container x is not valid for pod p")
	of := c.objects["pods/ns/p"].(*core.Pod)
	of.Spec.Containers[0].Name = "broken"
	c.want(c.serve("p", &core.PodLogOptions{}), 500, "Internal error occurred: the container is broken")
	of.Spec.NodeName = ""
	c.want(c.serve("p", &core.PodLogOptions{}), 204, "")
	c.want(c.serve("p", &core.PodExecOptions{Command: []string{"x"}}), 400, "pod p does not have a host assigned")
	of.Spec.NodeName = "gone"
	c.want(c.serve("p", &core.PodPortForwardOptions{}), 404, `nodes "gone" not found`)
}

// TestNodeAddress checks that a node must not have a loopback, link-local or other special address (CVE-2022-3294).
func TestNodeAddress(t *testing.T) {
	c := newCluster(t)
	c.want(c.serve("n", &core.NodeProxyOptions{Path: "/healthz"})+"/healthz", 200, "GET /healthz")
	if last := c.dialed[len(c.dialed)-1]; last != nodeIP+":10250" {
		t.Errorf("dialed %s", last)
	}
	c.dialed = nil
	for _, address := range []string{"127.0.0.1", "127.8.9.10", "::1", "169.254.169.254", "fe80::1", "0.0.0.0",
		"224.0.0.1", "localhost", "::ffff:127.0.0.1"} {
		c.node(address)
		for _, name := range []string{"n", "n:10250", "https:n:22", "http:n:80"} {
			if resp, text := c.do("GET", c.serve(name, &core.NodeProxyOptions{Path: "/"})+"/",
				""); resp.StatusCode != 400 || strings.TrimSpace(text) != "address not allowed" {
				t.Errorf("%s, %s: %d %s", address, name, resp.StatusCode, text)
			}
		}
	}
	if len(c.dialed) > 0 {
		t.Errorf("dialed %q", c.dialed)
	}
}

// TestNodeNameThatChanges checks that the address of a host name is checked again at the dial, because it may have
// changed (CVE-2020-8562).
func TestNodeNameThatChanges(t *testing.T) {
	loopback := listen(t)
	defer loopback.Close()
	go func() {
		for conn, err := loopback.Accept(); err == nil; conn, err = loopback.Accept() {
			_ = conn.Close()
		}
	}()
	var lookups atomic.Int64
	was := net.DefaultResolver
	defer func() { net.DefaultResolver = was }()
	net.DefaultResolver = dns.Resolver(func(string) netip.Addr {
		if lookups.Add(1) <= 2 { // one for each address family
			return netip.MustParseAddr(nodeIP)
		}
		return netip.MustParseAddr("127.0.0.1")
	})
	c := newCluster(t, func(c *nodes.Config) { c.Dialer = &egress.Dialer{} })
	c.node("rebinds.example.com.")
	_, port, _ := net.SplitHostPort(loopback.Addr().String())
	for _, headers := range [][]string{nil, {"Connection: Upgrade", "Upgrade: websocket"}} {
		for _, name := range []string{"n", "http:n:" + port, "https:n:" + port} {
			lookups.Store(0)
			resp, text := c.do("GET", c.serve(name, &core.NodeProxyOptions{Path: "/"})+"/", "", headers...)
			if resp.StatusCode < 500 || !strings.Contains(text,
				"cannot connect to 127.0.0.1: it is a loopback address") {
				t.Errorf("%s: %d %s", name, resp.StatusCode, text)
			}
			if lookups.Load() < 4 {
				t.Errorf("%s was looked up %d times, want at least 4", name, lookups.Load())
			}
		}
	}
}

// TestService checks that a Service is proxied by the number or name of a port to a Pod behind it. Endpoints in an
// EndpointSlice that are not addresses of their Pods are ignored (CVE-2021-25740).
func TestService(t *testing.T) {
	c := newCluster(t)
	c.objects["services/ns/s"] = &core.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
		Spec:       core.ServiceSpec{Ports: []core.ServicePort{{Name: "web", Port: 80}, {Name: "other", Port: 81}}},
	}
	c.slice("another", "web", 1, podIP+"=p")
	c.slice("s", "web", 8080, "203.0.113.9=p", podIP, podIP+"=none", podIP+"=p")
	for _, name := range []string{"s:80", "s:web", "http:s:web", "http:s:80"} {
		for range 8 {
			c.want(c.serve(name, &core.ServiceProxyOptions{Path: "/x"})+"/x", 200, "GET /x")
		}
	}
	for _, address := range c.dialed {
		if address != podIP+":8080" {
			t.Errorf("dialed %s", address)
		}
	}
	c.want(c.serve("s:82", &core.ServiceProxyOptions{}), 503, `no service port 82 found for service "s"`)
	c.want(c.serve("s:other", &core.ServiceProxyOptions{}), 503, `no endpoints available for service "s"`)
	c.want(c.serve("s", &core.ServiceProxyOptions{}), 503, `no endpoints available for service "s"`)
	c.want(c.serve("none:80", &core.ServiceProxyOptions{}), 404, `services "none" not found`)
	c.want(c.serve("a:b:c:d", &core.ServiceProxyOptions{}), 400, `invalid service request "a:b:c:d"`)
	c.objects["pods/ns/p"].(*core.Pod).Status.PodIPs[0].IP = "203.0.113.9"
	c.slices = nil
	c.slice("s", "web", 8080, "127.0.0.1=p")
	c.objects["pods/ns/p"].(*core.Pod).Status.PodIPs[0].IP = "127.0.0.1"
	if resp, text := c.do("GET", c.serve("s:80", &core.ServiceProxyOptions{Path: "/"})+"/",
		""); resp.StatusCode != 503 || !strings.Contains(text,
		"cannot connect to 127.0.0.1: it is a loopback address") {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}

// TestFailedUpgrade checks a connection whose upgrade fails. The connection ends with the response, and no further
// request on it reaches the kubelet (CVE-2018-1002105).
func TestFailedUpgrade(t *testing.T) {
	c := newCluster(t)
	url := c.serve("p", &core.PodExecOptions{Command: []string{"true"}}) // kubelets reject exec without a stream
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nGET /pods "+
		"HTTP/1.1\r\nHost: x\r\n\r\n")
	var response strings.Builder
	if _, err := copyAll(&response, conn); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(response.String(), "HTTP/1.1 400") || strings.Count(response.String(), "HTTP/1.1") != 1 {
		t.Errorf("got %q, want one response with status 400", response.String())
	}
	for _, r := range c.requests {
		if r.URL.Path == "/pods" {
			t.Error("the kubelet received the second request")
		}
	}
}

// TestRedirectOfUpgrade checks that neither the server nor its client follows a redirect of a kubelet in response to an
// upgrade (CVE-2020-8559).
func TestRedirectOfUpgrade(t *testing.T) {
	c := newCluster(t)
	c.objects["pods/ns/p"].(*core.Pod).Spec.Containers[0].Name = "moved"
	for _, protocol := range []string{"SPDY/3.1", "websocket"} {
		resp, text := c.do("GET", c.serve("p", &core.PodExecOptions{Stdout: true, Command: []string{"true"}}), "",
			"Connection: Upgrade", "Upgrade: "+protocol)
		if resp.StatusCode < 500 || resp.Header.Get("Location") != "" ||
			!strings.Contains(text, "invalid upgrade response: status code 302") {
			t.Errorf("%s: %d %v %s", protocol, resp.StatusCode, resp.Header, text)
		}
		if path := c.lastRequest().URL.Path; path != "/exec/ns/p/moved" {
			t.Errorf("%s: the kubelet received a request for %s", protocol, path)
		}
	}
}
