package conformance_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/fixture/kubelet"
)

// node is a fake node that both servers use. It consists of a kubelet and of a server in place of the Pods.
type node struct {
	kubelet, pod kubelet.Server
	address      string // non-loopback address of this machine, "" if it has none
	ca           string // file of the CA that signed the kubelet's certificate
}

func startKubelet(t *testing.T) *node {
	t.Helper()
	n := &node{ca: filepath.Join(t.TempDir(), "ca.crt")}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() {
			n.address = ip.IP.String()
		}
	}
	keys, err := pki.Ensure("", append([]string{"127.0.0.1"}, n.address), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.ca, keys.CAPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	for s, config := range map[*kubelet.Server]*tls.Config{&n.kubelet: {Certificates: []tls.Certificate{keys.Serving}},
		&n.pod: nil} {
		l, err := net.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		s.Start(l, config)
		t.Cleanup(s.Close)
	}
	return n
}

// trustKubelet configures a server to trust the kubelet's CA.
func (n *node) trustKubelet(c *apiserver.Config) { c.Kubelet.CAFile = n.ca }

const (
	connectPods     = "/api/v1/namespaces/connect/pods"
	connectServices = "/api/v1/namespaces/connect/services"
)

// testConnect compares exec, attach, port-forward, logs and the proxies of nodes, Pods and Services. It covers targets
// that do not exist and targets behind a kubelet.
func testConnect(t *testing.T, p *pair) {
	if p.node.address == "" {
		t.Log("skipping connections: a node needs an address other than loopback, and this machine has none")
		return
	}
	p.createPods(t)
	jane := http.Header{"Impersonate-User": {"jane"}}
	for _, path := range connectPaths() {
		p.get(t, path)
	}
	for _, sub := range []string{"exec?command=x", "attach", "portforward", "log", "proxy/a", "proxy"} {
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"} {
			p.send(t, request{method: method, path: connectPods + "/pending/" + sub})
			p.send(t, request{method: method, path: connectPods + "/pending/" + sub, header: jane})
		}
	}
	for _, accept := range []string{"text/plain", "application/yaml", "text/plain, */*", "image/png"} {
		p.send(t, request{method: "GET", path: connectPods + "/runs/log", accept: accept})
		p.send(t, request{method: "GET", path: connectPods + "/pending/exec?command=x", accept: accept})
	}
	for _, sub := range []string{"exec", "attach", "portforward"} { // users with the verb get, but not create
		p.do(t, "POST /apis/rbac.authorization.k8s.io/v1/clusterroles", "", fmt.Sprintf(
			`{"metadata":{"name":"gets-%[1]s"},"rules":[{"apiGroups":[""],"resources":["pods/%[1]s"],"verbs":["get"]}]}`, sub))
		p.do(t, "POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "", fmt.Sprintf(
			`{"metadata":{"name":"gets-%[1]s"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"gets-%[1]s"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"gets-%[1]s"}}`, sub))
		reader := http.Header{"Impersonate-User": {"gets-" + sub}}
		get := request{method: "GET", path: connectPods + "/pending/" + sub + "?command=x", header: reader}
		p.waitForResponse(t, get, func(a response) bool {
			return !strings.Contains(nested[string](a.body, "message"), "cannot get")
		})
		p.send(t, get)
		p.send(t, request{method: "POST", path: connectPods + "/pending/" + sub + "?command=x", header: reader})
	}
	p.testProxy(t)
}

// createPods creates nodes, Pods with and without a node, and a Service with endpoints.
func (p *pair) createPods(t *testing.T) {
	t.Helper()
	p.do(t, "POST /api/v1/namespaces", "", `{"metadata":{"name":"connect"}}`)
	p.do(t, "POST /api/v1/namespaces/connect/serviceaccounts", "", `{"metadata":{"name":"default"}}`)
	address := p.node.address
	for name, status := range map[string]string{
		"far":        fmt.Sprintf(`"addresses":[{"type":"InternalIP","address":%q}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}`, address, p.node.kubelet.Port()),
		"loopback":   fmt.Sprintf(`"addresses":[{"type":"InternalIP","address":"127.0.0.1"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}`, p.node.kubelet.Port()),
		"local":      `"addresses":[{"type":"InternalIP","address":"169.254.1.1"}]`,
		"no-address": `"addresses":[]`,
	} {
		p.do(t, "POST /api/v1/nodes", "", `{"metadata":{"name":"`+name+`"}}`)
		p.do(t, "PATCH /api/v1/nodes/"+name+"/status", asMerge, `{"status":{`+status+`}}`)
	}
	for name, spec := range map[string]string{
		"pending": `"containers":[{"name":"c","image":"i"}]`,
		"runs": `"nodeName":"far","containers":[{"name":"c","image":"i","ports":[{"containerPort":` +
			fmt.Sprint(p.node.pod.Port()) + `}]}],"initContainers":[{"name":"first","image":"i"}]`,
		"two":     `"nodeName":"far","containers":[{"name":"a","image":"i"},{"name":"broken","image":"i"}],"initContainers":[{"name":"first","image":"i"}]`,
		"lost":    `"nodeName":"none","containers":[{"name":"c","image":"i"}]`,
		"unknown": `"nodeName":"no-address","containers":[{"name":"c","image":"i"}]`,
	} {
		p.do(t, "POST "+connectPods, "", `{"metadata":{"name":"`+name+`","labels":{"app":"`+name+`"}},"spec":{`+spec+
			`}}`)
	}
	p.do(t, "PATCH "+connectPods+"/runs/status", asMerge, `{"status":{"podIP":"`+address+`","podIPs":[{"ip":"`+address+
		`"}]}}`)
	p.do(t, "PATCH "+connectPods+"/two/status", asMerge,
		`{"status":{"podIP":"169.254.1.1","podIPs":[{"ip":"169.254.1.1"}]}}`)
	p.do(t, "POST "+connectServices, "",
		`{"metadata":{"name":"s"},"spec":{"ports":[{"name":"web","port":80},{"name":"none","port":81}]}}`)
	p.do(t, "POST /apis/discovery.k8s.io/v1/namespaces/connect/endpointslices", "",
		fmt.Sprintf(`{"metadata":{"name":"s-1","labels":{"kubernetes.io/service-name":"s"}},
		"addressType":"IPv4","ports":[{"name":"web","port":%d}],"endpoints":[{"addresses":["192.0.2.77"]},{"addresses":[%q],"targetRef":{"kind":"Pod","namespace":"connect","name":"runs"}}]}`, p.node.pod.Port(), address))
}

// connectPaths returns paths of connections to missing targets, or with invalid parameters.
func connectPaths() (all []string) {
	for _, pod := range []string{"pending", "none", "runs", "two", "lost", "unknown", "a:b:c:d", "a%25b"} {
		for _, sub := range []string{"log", "exec?command=x", "attach", "portforward", "proxy", "exec?container=x",
			"attach?container=first", "log?container=x", "log?container=first", "log/x", "exec/x"} {
			if pod == "runs" && sub == "proxy" {
				continue // it is reachable, see testProxy
			}
			all = append(all, connectPods+"/"+pod+"/"+sub)
		}
	}
	for _, query := range []string{
		"limitBytes=0", "limitBytes=x", "tailLines=-1", "sinceSeconds=0",
		"sinceSeconds=5&sinceTime=2020-01-01T00:00:00Z", "sinceTime=x", "stream=Stdout", "timestamps=maybe",
		"previous=x", "nosuch=1",
		"previous=true&timestamps=true&tailLines=5&limitBytes=7&sinceSeconds=9", "sinceTime=2020-01-01T00:00:00Z",
		"insecureSkipTLSVerifyBackend=true", "dryRun=All", "timeout=5s",
	} {
		all = append(all, connectPods+"/runs/log?"+query)
	}
	for _, query := range []string{"exec?dryRun=All", "exec?stdin=maybe", "portforward?ports=x", "portforward?ports=80",
		"attach?tty=x", "exec?timeout=x", "proxy?dryRun=All"} {
		all = append(all, connectPods+"/pending/"+query)
	}
	return append(all, connectPods+"/two/log?container=broken", connectPods+"//log", connectPods+"//proxy",
		"/api/v1/pods/x/log", "/api/v1/namespaces//pods/x/exec", "/api/v1/watch/namespaces/connect/pods/x/log",
		"/api/v1/nodes/none/proxy", "/api/v1/nodes/none/proxy/", "/api/v1/nodes/loopback/proxy/x",
		"/api/v1/nodes/loopback/proxy//namespaces//x", "/api/v1/nodes/none/proxy//namespaces//x",
		"/api/v1/nodes/local/proxy/x", "/api/v1/nodes/no-address/proxy/x", "/api/v1/nodes/a:b:c:d/proxy",
		"/api/v1/nodes/https:loopback:80/proxy/x",
		"/api/v1/nodes/loopback/exec", "/api/v1/namespaces/connect/nodes/loopback/proxy",
		connectServices+"/none/proxy", connectServices+"/none:80/proxy/a", connectServices+"/s/proxy/a",
		connectServices+"/s:81/proxy/a", connectServices+"/s:82/proxy/a", connectServices+"/s:none/proxy/a",
		connectServices+"/a:b:c:d/proxy/",
		"/api/v1/proxy/namespaces/connect/pods/runs", "/apis//v1/namespaces/connect/pods/runs/proxy/x")
}

// testProxy compares proxied requests to running targets. The targets listen on a non-loopback address of this
// machine, because both servers reject loopback addresses.
func (p *pair) testProxy(t *testing.T) {
	t.Helper()
	for _, base := range []string{
		"/api/v1/nodes/far/proxy", fmt.Sprintf("/api/v1/nodes/http:far:%d/proxy", p.node.pod.Port()),
		connectPods + "/runs/proxy", fmt.Sprintf("%s/http:runs:%d/proxy", connectPods, p.node.pod.Port()),
		connectServices + "/s:80/proxy", connectServices + "/s:web/proxy", connectServices + "/http:s:80/proxy",
	} {
		for _, path := range []string{"", "/", "/a", "/a/", "/a%20b//c/?d=e&path=f", "//a", "//namespaces//x", "/page",
			"/moved", "/a/b/c/d/e/f/g/h",
			"/x%2Fy", "/x%2fy/", "/a%25b", "/a%252Fb", "/a%3Fb?c=d", "/a%23b", "/a;b=c", "/a%3Bb", "/a%C3%A9",
			"/a+b%2Bc", "/a:b@c"} {
			p.send(t, request{method: "GET", path: base + path})
			p.send(t, request{method: "POST", path: base + path, body: "text", contentType: "text/plain"})
		}
		for _, method := range []string{"PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"} {
			p.send(t, request{method: method, path: base + "/x", body: `{"a":"b"}`})
		}
	}
	p.get(t, connectPods+"/http:runs:1/proxy/")
	p.get(t, fmt.Sprintf("%s/https:runs:%d/proxy/", connectPods, p.node.pod.Port()))
}
