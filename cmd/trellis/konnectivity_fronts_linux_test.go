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

// KON-001 KON-004 KON-005 KON-007 KON-008 KON-011 KON-043 KON-044 KON-050 KON-051: an API server, ours or
// kube-apiserver, reaches a node, a webhook and another API server, which a tunnel alone leads to, over every transport
// that it has, with every server and every agent. One API server meets all of these after one another.
func TestFronts(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes minutes")
	}
	if os.Getenv(ownNetwork) == "" {
		inOwnNetwork(t)
		return
	}
	setUpNetwork(t)
	bin := kubectlDir(t)
	for api, start := range map[string]func(*testing.T, string, string) string{"Trellis": frontTrellis,
		"kube-apiserver": frontUpstream} {
		for _, tr := range transports {
			if api == "kube-apiserver" && tr == (transport{"GRPC", false}) {
				continue // its configuration refuses that
			}
			t.Run(api+", "+tr.String(), func(t *testing.T) {
				f := newFront(t, tr, bin, start)
				for _, server := range []whose{ours, references} {
					for _, agent := range []whose{ours, references} {
						t.Run(fmt.Sprintf("%s server, %s agent", server, agent),
							func(t *testing.T) { f.through(t, server, agent) })
					}
				}
			})
		}
	}
}

// front is an API server, and what is behind the tunnel.
type front struct {
	transport
	env     []string // of kubectl
	kubectl string
	keys    string // folder
	at      string // where it looks for the tunnel server
	remote  *remote
	port    int    // of what a container serves
	ca      string // as a caBundle
	cells   int    // so far
}

func newFront(t *testing.T, tr transport, bin string, start func(t *testing.T, egress,
	ca string) (kubeconfig string)) *front {
	t.Helper()
	f := &front{transport: tr, kubectl: filepath.Join(bin, "kubectl"), remote: newRemote(t)}
	if _, err := os.Stat(f.kubectl); err != nil {
		f.kubectl = "kubectl"
	}
	dir, keys := newKeys(t)
	f.keys, f.ca = dir, base64.StdEncoding.EncodeToString(keys.CAPEM)
	f.at = filepath.Join(shortFolder(t), "s")
	how := fmt.Sprintf("uds: {udsName: %q}", f.at)
	if !tr.socket {
		f.at = fmt.Sprintf("127.0.0.1:%d", newPort())
		how = fmt.Sprintf("tcp: {url: 'https://%s', tlsConfig: {caBundle: %q, clientCert: %q, clientKey: %q}}", f.at,
			dir+"/ca.crt", dir+"/admin.crt", dir+"/admin.key")
	}
	egress := filepath.Join(t.TempDir(), "egress.yaml")
	if err := os.WriteFile(egress, []byte(fmt.Sprintf(egressTo, tr.protocol, how)), 0o600); err != nil {
		t.Fatal(err)
	}
	container := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_,
			_ = io.WriteString(w, "served "+r.URL.Path)
	}))
	t.Cleanup(container.Close)
	f.port = container.Listener.Addr().(*net.TCPAddr).Port
	f.env = append(os.Environ(), "KUBECONFIG="+start(t, egress, filepath.Join(dir, "ca.crt")), "HOME="+t.TempDir())
	f.populate(t, keys)
	if out, err := f.run(t, "", "logs", "one"); err == nil {
		t.Fatalf("logs without a tunnel: %s", out)
	}
	return f
}

const egressTo = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections: [{name: cluster, connection: {proxyProtocol: %s, transport: {%s}}}]
`

func frontTrellis(t *testing.T, egress, ca string) string {
	return testserver.Start(t, testserver.With(func(c *apiserver.Config) {
		c.EgressSelectorFile,
			c.Kubelet.CAFile = egress, ca
	})).Kubeconfig
}

func frontUpstream(t *testing.T, egress, ca string) string {
	t.Helper()
	program, found := storagetest.Program(t, "kube-apiserver")
	etcd, also := storagetest.Program(t, "etcd")
	if !found || !also {
		t.Skip("there is no kube-apiserver with etcd: make peers builds them, see peers/README.md")
	}
	plane := &envtest.ControlPlane{APIServer: &envtest.APIServer{Path: program, StartTimeout: tunnelPatience},
		Etcd: &envtest.Etcd{Path: etcd, StartTimeout: tunnelPatience}}
	plane.APIServer.Configure().Set("egress-selector-config-file", egress).Set("kubelet-certificate-authority", ca).
		Set("enable-aggregator-routing", "true").Set("advertise-address", farAddress)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	plane.APIServer.Out, plane.APIServer.Err = log, log
	t.Cleanup(func() {
		if said, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("kube-apiserver: %s", said[max(0, len(said)-lastWords):])
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

// populate starts a kubelet and what a Service leads to, and has the API server know of them.
func (f *front) populate(t *testing.T, keys *pki.Bundle) {
	t.Helper()
	secured := &tls.Config{Certificates: []tls.Certificate{keys.Serving}}
	k := &kubelet.Server{}
	k.Start(f.remote.listen(t, "0.0.0.0:0"), secured)
	hook := httptest.NewUnstartedServer(http.HandlerFunc(serveHook))
	hook.Listener, hook.TLS = f.remote.listen(t, "0.0.0.0:0"), secured.Clone()
	hook.StartTLS()
	t.Cleanup(func() {
		for _, s := range []*httptest.Server{k.Server, hook} {
			s.CloseClientConnections()
			s.Close()
		}
	})
	f.must(t, fmt.Sprintf(behindTunnel, nodeAddress, hook.Listener.Addr().(*net.TCPAddr).Port, f.ca), "create", "-f",
		"-")
	f.must(t, "", "patch", "node", "node", "--subresource=status", "--type=merge",
		"-p", fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalIP","address":%q}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`, nodeAddress, k.Port()))
	f.must(t, "", "patch", "pod", "one", "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Running"}}`)
}

const behindTunnel = `apiVersion: v1
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

const behindAPIService = `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.%[1]s}
spec: {group: %[1]s, version: v1, groupPriorityMinimum: 1000, versionPriority: 10, service: {namespace: default, name: hook}, caBundle: %[2]s}
`

// serveHook is a webhook that forbids what is named no, and an API server of all groups.
func serveHook(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path != "/admit" {
		group := strings.Split(r.URL.Path+"///", "/")[2]
		_, _ = fmt.Fprintf(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"%s/v1","resources":[{"name":"things","namespaced":true,"kind":"Thing","verbs":["get"]}]}`, group)
		return
	}
	var review struct {
		Request struct{ UID, Name string }
	}
	_ = json.NewDecoder(r.Body).Decode(&review)
	_, _ = fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":%v,"status":{"message":"not that name"}}}`,
		review.Request.UID, review.Request.Name != "no")
}

// run runs kubectl with something to read.
func (f *front) run(t *testing.T, in string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tunnelPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.kubectl, args...)
	cmd.Env, cmd.Stdin = f.env, strings.NewReader(in)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %q: %w: %s", args, err, said.String())
	}
	return string(out), err
}

func (f *front) must(t *testing.T, in string, args ...string) string {
	t.Helper()
	out, err := f.run(t, in, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// through does what users do, with a tunnel of these two ends.
func (f *front) through(t *testing.T, server, agent whose) {
	s := newTunnelServer(t, server, f.keys, f.transport, f.at)
	l := f.remote.listen(t, "127.0.0.1:0")
	go relay(l, fmt.Sprintf("127.0.0.1:%d", s.agents))
	newTunnelAgent(t, agent, f.remote, f.keys, l.Addr().(*net.TCPAddr).Port)
	eventually(t, "the server is ready", s.ready)
	long := strings.Repeat("0123456789abcde\n", 20_000)
	for _, c := range []struct{ args, in, want string }{
		{"logs one --tail=5", "", "log of default/one/c\nasked with \"tailLines=5\"\n"},
		{"exec -i one -- cat", long, long},
		{"exec -i one -- cat", "told", "told"},
		{"attach -i one", "told", "attached to one/c\ntold"},
		{"get --raw /api/v1/nodes/node/proxy/healthz", "", "GET /healthz "},
	} {
		if out := f.must(t, c.in, strings.Fields(c.args)...); out != c.want {
			t.Errorf("%s: %d bytes, %.200q, want %d, %.200q", c.args, len(out), out, len(c.want), c.want)
		}
	}
	if _, err := f.run(t, "", "exec", "one", "--", "sh", "-c", "exit 7"); err == nil ||
		!strings.Contains(err.Error(), "exit code 7") {
		t.Errorf("a command that fails: %v", err)
	}
	f.forward(t)
	f.services(t)
}

var forwarding = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+) ->`)

// forward has a port of the Pod be one of this machine.
func (f *front) forward(t *testing.T) {
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
	at := forwarding.FindStringSubmatch(line)
	if at == nil {
		t.Fatalf("port-forward: %q, %v", line, err)
	}
	for _, path := range []string{"/a", "/b"} {
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + at[1] + path)
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

// services reaches what Services lead to: a webhook, which allows and forbids, and an API server.
func (f *front) services(t *testing.T) {
	t.Helper()
	f.cells++
	f.must(t, "", "create", "secret", "generic", fmt.Sprintf("yes-%d", f.cells))
	if out, err := f.run(t, "", "create", "secret", "generic", "no"); err == nil ||
		!strings.Contains(err.Error(), "not that name") {
		t.Errorf("what the webhook forbids: %s, %v", out, err)
	}
	group := fmt.Sprintf("cell%d.example.com", f.cells) // none that the API server knows as one that is away
	f.must(t, fmt.Sprintf(behindAPIService, group, f.ca), "create", "-f", "-")
	var out string
	var err error
	eventually(t, "the aggregated API is there", func() bool {
		out, err = f.run(t, "", "get", "--raw", "/apis/"+group+"/v1/things")
		return err == nil
	})
	if !strings.Contains(out, group) {
		t.Errorf("the aggregated API: %s", out)
	}
	f.must(t, "", "delete", "apiservice", "v1."+group)
}
