package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/fixture/kubelet"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
	"github.com/trellis-k8s/trellis/testserver"
)

var transports = []transport{{"GRPC", true}, {"GRPC", false}, {"HTTPConnect", true}, {"HTTPConnect", false}}

// TestFrontends checks that Trellis and kube-apiserver connect to a node, a webhook and an aggregated API server that
// are reachable only through a tunnel. It tests every transport with the servers and agents of Trellis and with the
// reference programs. Each API server uses all these tunnels one after the other. KON-001 KON-004 KON-005 KON-007
// KON-008 KON-011 KON-043 KON-044 KON-050 KON-051
func TestFrontends(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes; skipped with -short")
	}
	if os.Getenv(ownNetwork) == "" {
		inOwnNetwork(t)
		return
	}
	setUpNetwork(t)
	bin := kubectlDir(t)
	for api, start := range map[string]func(*testing.T, string, string) string{
		"Trellis":        startTrellis,
		"kube-apiserver": startUpstream,
	} {
		for _, tr := range transports {
			if api == "kube-apiserver" && tr == (transport{"GRPC", false}) {
				continue // kube-apiserver rejects this configuration
			}
			t.Run(api+", "+tr.String(), func(t *testing.T) {
				f := newFrontend(t, tr, bin, start)
				for _, server := range []implementation{trellis, reference} {
					for _, agent := range []implementation{trellis, reference} {
						t.Run(fmt.Sprintf("%s server, %s agent", server, agent),
							func(t *testing.T) { f.checkTunnel(t, server, agent) })
					}
				}
			})
		}
	}
}

// frontend is an API server that is configured to dial through a tunnel, and the servers behind the tunnel.
type frontend struct {
	transport
	env           []string // environment of kubectl
	kubectl       string   // path
	keys          string   // folder
	tunnelAddress string   // socket path or address at which the API server dials the tunnel server
	netns         *netns
	port          int    // of the container's HTTP server
	ca            string // as a caBundle
	tunnels       int    // number of tunnels tested so far
}

func newFrontend(
	t *testing.T, tr transport, bin string, start func(t *testing.T, egress, ca string) (kubeconfig string),
) *frontend {
	t.Helper()
	f := &frontend{transport: tr, kubectl: filepath.Join(bin, "kubectl"), netns: newNetns(t)}
	if _, err := os.Stat(f.kubectl); err != nil {
		f.kubectl = "kubectl"
	}
	dir, keys := newKeys(t)
	f.keys, f.ca = dir, base64.StdEncoding.EncodeToString(keys.CAPEM)
	f.tunnelAddress = filepath.Join(shortFolder(t), "s")
	transportConfig := fmt.Sprintf("uds: {udsName: %q}", f.tunnelAddress)
	if !tr.socket {
		f.tunnelAddress = fmt.Sprintf("127.0.0.1:%d", newPort())
		transportConfig = fmt.Sprintf("tcp: {url: 'https://%s', tlsConfig: {caBundle: %q, clientCert: %q, "+
			"clientKey: %q}}",
			f.tunnelAddress, dir+"/ca.crt", dir+"/admin.crt", dir+"/admin.key")
	}
	egress := filepath.Join(t.TempDir(), "egress.yaml")
	if err := os.WriteFile(egress, []byte(fmt.Sprintf(egressConfig, tr.protocol, transportConfig)), 0o600); err != nil {
		t.Fatal(err)
	}
	container := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "served "+r.URL.Path)
	}))
	t.Cleanup(container.Close)
	f.port = container.Listener.Addr().(*net.TCPAddr).Port
	f.env = append(os.Environ(), "KUBECONFIG="+start(t, egress, filepath.Join(dir, "ca.crt")), "HOME="+t.TempDir())
	f.createObjects(t, keys)
	if out, err := f.run(t, "", "logs", "one"); err == nil {
		t.Fatalf("kubectl logs without a tunnel server succeeds: %s", out)
	}
	return f
}

const egressConfig = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections: [{name: cluster, connection: {proxyProtocol: %s, transport: {%s}}}]
`

func startTrellis(t *testing.T, egress, ca string) string {
	return testserver.Start(t, testserver.With(func(c *apiserver.Config) {
		c.EgressSelectorFile, c.Kubelet.CAFile = egress, ca
	})).Kubeconfig
}

func startUpstream(t *testing.T, egress, ca string) string {
	t.Helper()
	program, found := storagetest.Program(t, "kube-apiserver")
	etcd, also := storagetest.Program(t, "etcd")
	if !found || !also {
		t.Skip("no kube-apiserver or etcd: build them with make oracle, see peers/README.md")
	}
	plane := &envtest.ControlPlane{APIServer: &envtest.APIServer{Path: program, StartTimeout: tunnelTimeout},
		Etcd: &envtest.Etcd{Path: etcd, StartTimeout: tunnelTimeout}}
	plane.APIServer.Configure().Set("egress-selector-config-file", egress).Set("kubelet-certificate-authority", ca).
		Set("enable-aggregator-routing", "true").Set("advertise-address", remoteServerAddress)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	plane.APIServer.Out, plane.APIServer.Err = log, log
	t.Cleanup(func() {
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("kube-apiserver: %s", text[max(0, len(text)-logTail):])
		}
	})
	if err := plane.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Stop() })
	admin, err := plane.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := admin.KubeConfig()
	name := filepath.Join(t.TempDir(), "kubeconfig")
	if err == nil {
		err = os.WriteFile(name, kubeconfig, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// createObjects starts a kubelet and a webhook server behind the tunnel, and creates the objects that refer to them.
func (f *frontend) createObjects(t *testing.T, keys *pki.Bundle) {
	t.Helper()
	secured := &tls.Config{Certificates: []tls.Certificate{keys.Serving}}
	k := &kubelet.Server{}
	k.Start(f.netns.listen(t, "0.0.0.0:0"), secured)
	hook := httptest.NewUnstartedServer(http.HandlerFunc(serveHook))
	hook.Listener, hook.TLS = f.netns.listen(t, "0.0.0.0:0"), secured.Clone()
	hook.StartTLS()
	t.Cleanup(func() {
		for _, s := range []*httptest.Server{k.Server, hook} {
			s.CloseClientConnections()
			s.Close()
		}
	})
	f.mustRun(t, fmt.Sprintf(objectsBehindTunnel, nodeAddress, hook.Listener.Addr().(*net.TCPAddr).Port, f.ca),
		"create", "-f", "-")
	f.mustRun(t, "", "patch", "node", "node", "--subresource=status", "--type=merge",
		"-p", fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalIP","address":%q}],`+
			`"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`, nodeAddress, k.Port()))
	f.mustRun(t, "", "patch", "pod", "one", "--subresource=status", "--type=merge", "-p",
		`{"status":{"phase":"Running"}}`)
}

const objectsBehindTunnel = `apiVersion: v1
kind: Node
metadata: {name: node}
---
apiVersion: v1
kind: Pod
metadata: {name: one}
spec: {nodeName: node, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Service
metadata: {name: hook}
spec: {ports: [{port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hook, labels: {kubernetes.io/service-name: hook}}
addressType: IPv4
endpoints: [{addresses: [%s]}]
ports: [{name: "", port: %d}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: hook}
webhooks:
- name: hook.example.com
  sideEffects: None
  admissionReviewVersions: [v1]
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [secrets]}]
  clientConfig: {service: {namespace: default, name: hook, path: /admit}, caBundle: %s}
`

const apiServiceBehindTunnel = `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.%[1]s}
spec:
  {group: %[1]s, version: v1, groupPriorityMinimum: 1000, versionPriority: 10, caBundle: %[2]s,
   service: {namespace: default, name: hook}}
`

// serveHook is the handler of an admission webhook that denies objects with the name "no". It is also the handler of
// an aggregated API server for every group.
func serveHook(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path != "/admit" {
		group := strings.Split(r.URL.Path+"///", "/")[2]
		_, _ = fmt.Fprintf(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"%s/v1",`+
			`"resources":[{"name":"things","namespaced":true,"kind":"Thing","verbs":["get"]}]}`, group)
		return
	}
	var review struct {
		Request struct{ UID, Name string }
	}
	_ = json.NewDecoder(r.Body).Decode(&review)
	_, _ = fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",`+
		`"response":{"uid":%q,"allowed":%v,"status":{"message":"not that name"}}}`,
		review.Request.UID, review.Request.Name != "no")
}

// run runs kubectl with the standard input in, and returns its standard output.
func (f *frontend) run(t *testing.T, in string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tunnelTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.kubectl, args...)
	cmd.Env, cmd.Stdin = f.env, strings.NewReader(in)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %q: %w: %s", args, err, stderr.String())
	}
	return string(out), err
}

// mustRun is like run, and fails the test on an error.
func (f *frontend) mustRun(t *testing.T, in string, args ...string) string {
	t.Helper()
	out, err := f.run(t, in, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// checkTunnel uses a tunnel of a server and an agent as users do: kubectl logs, exec, attach and port-forward, the
// proxy of the node, and Services.
func (f *frontend) checkTunnel(t *testing.T, server, agent implementation) {
	s := newTunnelServer(t, server, f.keys, f.transport, f.tunnelAddress)
	l := f.netns.listen(t, "127.0.0.1:0")
	go relay(l, fmt.Sprintf("127.0.0.1:%d", s.agentPort))
	newTunnelAgent(t, agent, f.netns, f.keys, l.Addr().(*net.TCPAddr).Port)
	eventually(t, "the server is ready", s.ready)
	long := strings.Repeat("0123456789abcde\n", 20_000)
	for _, c := range []struct{ args, in, want string }{
		{"logs one --tail=5", "", "log of default/one/c\nasked with \"tailLines=5\"\n"},
		{"exec -i one -- cat", long, long},
		{"exec -i one -- cat", "echo", "echo"},
		{"attach -i one", "echo", "attached to one/c\necho"},
		{"get --raw /api/v1/nodes/node/proxy/healthz", "", "GET /healthz "},
	} {
		if out := f.mustRun(t, c.in, strings.Fields(c.args)...); out != c.want {
			t.Errorf("%s: got %d bytes, %.200q, want %d, %.200q", c.args, len(out), out, len(c.want), c.want)
		}
	}
	if _, err := f.run(t, "", "exec", "one", "--", "sh", "-c", "exit 7"); err == nil ||
		!strings.Contains(err.Error(), "exit code 7") {
		t.Errorf("a command with exit code 7: got %v", err)
	}
	f.checkForward(t)
	f.checkServices(t)
}

var forwarding = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+) ->`)

// checkForward forwards a local port to the Pod, and sends requests to it.
func (f *frontend) checkForward(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), f.kubectl, "port-forward", "--address=127.0.0.1", "one",
		fmt.Sprintf(":%d", f.port))
	cmd.Env = f.env
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	address := forwarding.FindStringSubmatch(line)
	if address == nil {
		t.Fatalf("port-forward: %q, %v", line, err)
	}
	for _, path := range []string{"/a", "/b"} {
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" +
			address[1] + path)
		if err != nil {
			t.Fatalf("port-forward: %v", err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || string(body) != "served "+path {
			t.Errorf("port-forward: %q, %v", body, err)
		}
		_ = resp.Body.Close()
	}
}

// checkServices checks that the API server calls a webhook and an aggregated API server through their Service.
func (f *frontend) checkServices(t *testing.T) {
	t.Helper()
	f.tunnels++
	f.mustRun(t, "", "create", "secret", "generic", fmt.Sprintf("yes-%d", f.tunnels))
	if out, err := f.run(t, "", "create", "secret", "generic", "no"); err == nil ||
		!strings.Contains(err.Error(), "not that name") {
		t.Errorf("creation that the webhook denies: %s, %v", out, err)
	}
	// a new group for each tunnel, which the API server has not marked as unavailable
	group := fmt.Sprintf("tunnel%d.example.com", f.tunnels)
	f.mustRun(t, fmt.Sprintf(apiServiceBehindTunnel, group, f.ca), "create", "-f", "-")
	var out string
	var err error
	eventually(t, "the aggregated API is available", func() bool {
		out, err = f.run(t, "", "get", "--raw", "/apis/"+group+"/v1/things")
		return err == nil
	})
	if !strings.Contains(out, group) {
		t.Errorf("the aggregated API: %s", out)
	}
	f.mustRun(t, "", "delete", "apiservice", "v1."+group)
}
