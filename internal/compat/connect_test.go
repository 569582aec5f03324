package compat_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/fixture/kubelet"
	"github.com/trellis-k8s/trellis/internal/fixture/tunnel"
	"github.com/trellis-k8s/trellis/testserver"
)

// nodeAddress leads through a tunnel to this machine: a node has no loopback address.
const nodeAddress = "203.0.113.1"

// cluster is a server with a Pod "p" of one container on the node "n", which has a kubelet.
type cluster struct {
	*testing.T
	*testserver.Server
	client kubernetes.Interface
}

func newCluster(t *testing.T, options ...testserver.Option) *cluster {
	t.Helper()
	keys, err := pki.Ensure("", []string{nodeAddress}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, keys.CAPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	selection, _ := tunnel.Select(t, "cluster")
	c := &cluster{T: t, Server: testserver.Start(t, append(options, testserver.With(func(c *apiserver.Config) { c.Kubelet.CAFile, c.EgressSelectorFile = ca, selection }))...)}
	if c.client, err = kubernetes.NewForConfig(c.Config); err != nil {
		t.Fatal(err)
	}
	k, clients, l := &kubelet.Server{Dir: t.TempDir()}, x509.NewCertPool(), listen(t)
	clients.AppendCertsFromPEM(c.Config.CAData)
	k.Start(l, &tls.Config{Certificates: []tls.Certificate{keys.Serving}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients})
	t.Cleanup(k.Close)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	if node, err = c.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(k.Port())
	if _, err := c.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := c.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// at is the URL of a subresource of the Pod.
func (c *cluster) at(subresource string, options any) *url.URL {
	r := c.client.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("p").SubResource(subresource)
	switch o := options.(type) {
	case *corev1.PodExecOptions:
		r = r.VersionedParams(o, scheme.ParameterCodec)
	case *corev1.PodAttachOptions:
		r = r.VersionedParams(o, scheme.ParameterCodec)
	}
	return r.URL()
}

// executors speak SPDY and WebSockets, as kubectl may.
func (c *cluster) executors(config *rest.Config, u *url.URL) map[string]remotecommand.Executor {
	c.Helper()
	overSPDY, err := remotecommand.NewSPDYExecutor(config, "POST", u)
	if err != nil {
		c.Fatal(err)
	}
	overWebSocket, err := remotecommand.NewWebSocketExecutor(config, "GET", u.String())
	if err != nil {
		c.Fatal(err)
	}
	return map[string]remotecommand.Executor{"SPDY": overSPDY, "WebSocket": overWebSocket}
}

// size is a terminal that has one.
type size chan remotecommand.TerminalSize

func (s size) Next() *remotecommand.TerminalSize {
	if next, ok := <-s; ok {
		return &next
	}
	return nil
}

// EXT-025: a command gets what it is told, says what it says, and ends as it ends, over SPDY and WebSockets.
func TestExec(t *testing.T) {
	c := newCluster(t)
	script := []string{"sh", "-c", "cat; echo wrong >&2; exit 7"}
	for name, e := range c.executors(c.Config, c.at("exec", &corev1.PodExecOptions{Stdin: true, Stdout: true, Stderr: true, Command: script})) {
		var out, err bytes.Buffer
		failed := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("told\n"), Stdout: &out, Stderr: &err})
		code, ok := failed.(exec.CodeExitError)
		if !ok || code.Code != 7 || out.String() != "told\n" || err.String() != "wrong\n" {
			t.Errorf("%s: %v, %q, %q", name, failed, out.String(), err.String())
		}
	}
	for name, e := range c.executors(c.Config, c.at("exec", &corev1.PodExecOptions{Stdin: true, Stdout: true, TTY: true, Command: []string{"size"}})) {
		var out bytes.Buffer
		terminal := make(size, 1)
		terminal <- remotecommand.TerminalSize{Width: 80, Height: 24}
		in, told := io.Pipe()
		if err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: &out, Tty: true, TerminalSizeQueue: terminal}); err != nil || out.String() != "80x24\n" {
			t.Errorf("%s: %v, %q", name, err, out.String())
		}
		_ = told.Close()
		close(terminal)
	}
	for name, e := range c.executors(c.Config, c.at("attach", &corev1.PodAttachOptions{Stdin: true, Stdout: true})) {
		var out bytes.Buffer
		if err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("told"), Stdout: &out}); err != nil || out.String() != "attached to p/c\ntold" {
			t.Errorf("%s: %v, %q", name, err, out.String())
		}
	}
}

// A port of a Pod answers at a port of the client's, over SPDY and over WebSockets.
func TestPortForward(t *testing.T) {
	c := newCluster(t)
	pod := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	defer pod.Close()
	transport, upgrader, err := spdy.RoundTripperFor(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialer(c.at("portforward", nil), c.Config)
	if err != nil {
		t.Fatal(err)
	}
	for name, dialer := range map[string]httpstream.Dialer{"SPDY": spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", c.at("portforward", nil)), "WebSocket": overWebSocket} {
		stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		forwarder, err := portforward.New(dialer, []string{"0:" + pod.URL[strings.LastIndex(pod.URL, ":")+1:]}, stop, ready, io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- forwarder.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-ended:
			t.Fatal(name, err)
		}
		ports, err := forwarder.GetPorts()
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			large := strings.Repeat("x", 1<<20)
			resp, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local), "text/plain", strings.NewReader(large))
			if err != nil {
				t.Fatal(name, err)
			}
			if text, err := io.ReadAll(resp.Body); err != nil || string(text) != large {
				t.Errorf("%s: %d bytes, %v", name, len(text), err)
			}
			_ = resp.Body.Close()
		}
		close(stop)
		if err := <-ended; err != nil {
			t.Error(name, err)
		}
	}
}

// A log comes as it is printed, and goes on while somebody follows it; the end of the server ends it, and commands that run.
func TestFollowUntilTheEnd(t *testing.T) {
	c := newCluster(t)
	log, err := c.client.CoreV1().Pods("default").GetLogs("p", &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := "log of default/p/c\nasked with \"follow=true\"\n"
	if text, err := io.ReadAll(io.LimitReader(log, int64(len(want)))); err != nil || string(text) != want {
		t.Fatalf("%q, %v", text, err)
	}
	ended := make(chan error, 2)
	executors := c.executors(c.Config, c.at("exec", &corev1.PodExecOptions{Stdin: true, Stdout: true, Command: []string{"sh", "-c", "echo begun; cat"}}))
	for _, e := range executors {
		in, told := io.Pipe()
		defer told.Close()
		out, begun := io.Pipe()
		go func() {
			ended <- e.StreamWithContext(context.Background(), remotecommand.StreamOptions{Stdin: in, Stdout: begun})
		}()
		if _, err := io.ReadFull(out, make([]byte, len("begun\n"))); err != nil {
			t.Fatal(err)
		}
	}
	c.Stop()
	if rest, _ := io.ReadAll(log); len(rest) > 0 {
		t.Errorf("the log goes on: %q", rest)
	}
	for range executors {
		<-ended
	}
}

// Who may get and not create gets no connection, by whatever method.
func TestGetIsNotCreate(t *testing.T) {
	c := newCluster(t)
	may := func(name, verbs string) *rest.Config { return c.User(name, testserver.May(verbs, "pods/exec")) }
	for name, config := range map[string]*rest.Config{"SPDY WebSocket": may("both", "get,create"), "SPDY": may("creator", "create"), "": may("reader", "get")} {
		for by, e := range c.executors(config, c.at("exec", &corev1.PodExecOptions{Stdout: true, Command: []string{"true"}})) {
			err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
			if allowed := strings.Contains(name, by); (err == nil) != allowed || !allowed && !strings.Contains(err.Error(), "forbidden") {
				t.Errorf("%q by %s: %v", name, by, err)
			}
		}
	}
}

// A caller who may get nodes/proxy, and not create it, reads a kubelet's paths and reaches into no container, in any
// spelling of the path.
func TestGetOfNodeProxyIsNotCreate(t *testing.T) {
	c := newCluster(t)
	reader, creator := c.User("reader", testserver.May("get", "nodes/proxy")), c.User("creator", testserver.May("get,create", "nodes/proxy"))
	status := func(config *rest.Config, path string) int {
		t.Helper()
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.Config.Host+"/api/v1/nodes/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Connection", "Upgrade")
		request.Header.Set("Upgrade", "websocket")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	for _, path := range []string{
		"n/proxy/exec/default/p/c?command=true&output=1", "n/proxy/run/default/p/c?cmd=true", "n/proxy/attach/default/p/c", "n/proxy/portForward/default/p",
		"https:n:10250/proxy/exec/default/p/c", "n/proxy//exec/default/p/c", "n/proxy/pods/%2e%2e/exec/default/p/c", "n/proxy/%65xec/default/p/c", "n/proxy/exec",
	} {
		if code := status(reader, path); code != http.StatusForbidden {
			t.Errorf("%s with get alone: %d", path, code)
		}
		if code := status(creator, path); code == http.StatusForbidden {
			t.Errorf("%s with get and create: %d", path, code)
		}
	}
	for _, path := range []string{"n/proxy/pods", "n/proxy/containerLogs/default/p/c", "n/proxy/executions"} {
		if code := status(reader, path); code == http.StatusForbidden {
			t.Errorf("%s with get alone: %d", path, code)
		}
	}
}

// Policies judge who may be connected, and see with what.
func TestConnectIsAdmitted(t *testing.T) {
	c := newCluster(t)
	policy := `{"metadata":{"name":"calm"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CONNECT"],"resources":["pods/exec"]}]},
		"validations":[{"expression":"object.kind == 'PodExecOptions' && object.command[0] != 'rm' && object.container == 'c'","message":"not that"}]}}`
	binding := `{"metadata":{"name":"calm"},"spec":{"policyName":"calm","validationActions":["Deny"]}}`
	for kind, text := range map[string]string{"validatingadmissionpolicies": policy, "validatingadmissionpolicybindings": binding} {
		if err := c.client.AdmissionregistrationV1().RESTClient().Post().Resource(kind).Body([]byte(text)).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	for command, allowed := range map[string]bool{"true": true, "rm": false} {
		for by, e := range c.executors(c.Config, c.at("exec", &corev1.PodExecOptions{Stdout: true, Container: "c", Command: []string{command}})) {
			err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
			if (err == nil) != allowed || !allowed && !strings.Contains(err.Error(), "not that") {
				t.Errorf("%s by %s: %v", command, by, err)
			}
		}
	}
}
