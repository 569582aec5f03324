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

// nodeAddress is the address of the node. It must not be a loopback address, so the server connects to it through a
// tunnel that ends on this machine.
const nodeAddress = "203.0.113.1"

// cluster is a server with a node "n" and its kubelet, and a Pod "p" with one container on the node.
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
	c := &cluster{T: t, Server: testserver.Start(t, append(options,
		testserver.With(func(c *apiserver.Config) { c.Kubelet.CAFile, c.EgressSelectorFile = ca, selection }))...)}
	if c.client, err = kubernetes.NewForConfig(c.Config); err != nil {
		t.Fatal(err)
	}
	k, clientCAs, l := &kubelet.Server{Dir: t.TempDir()}, x509.NewCertPool(), listen(t)
	clientCAs.AppendCertsFromPEM(c.Config.CAData)
	k.Start(l, &tls.Config{Certificates: []tls.Certificate{keys.Serving}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: clientCAs})
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
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
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

// subresourceURL returns the URL of a subresource of the Pod.
func (c *cluster) subresourceURL(subresource string, options any) *url.URL {
	r := c.client.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("p").SubResource(subresource)
	switch o := options.(type) {
	case *corev1.PodExecOptions:
		r = r.VersionedParams(o, scheme.ParameterCodec)
	case *corev1.PodAttachOptions:
		r = r.VersionedParams(o, scheme.ParameterCodec)
	}
	return r.URL()
}

// executors returns an executor for each protocol of kubectl: SPDY and WebSocket.
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

// sizeQueue is a queue of terminal sizes.
type sizeQueue chan remotecommand.TerminalSize

func (s sizeQueue) Next() *remotecommand.TerminalSize {
	if next, ok := <-s; ok {
		return &next
	}
	return nil
}

// TestExec checks input, output, exit code and terminal size of exec, and attach, over SPDY and WebSocket (EXT-025).
func TestExec(t *testing.T) {
	c := newCluster(t)
	script := []string{"sh", "-c", "cat; echo wrong >&2; exit 7"}
	for name, e := range c.executors(c.Config, c.subresourceURL("exec",
		&corev1.PodExecOptions{Stdin: true, Stdout: true, Stderr: true, Command: script})) {
		var out, err bytes.Buffer
		failed := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("input\n"),
			Stdout: &out, Stderr: &err})
		code, ok := failed.(exec.CodeExitError)
		if !ok || code.Code != 7 || out.String() != "input\n" || err.String() != "wrong\n" {
			t.Errorf("%s: got %v, output %q and %q, want exit code 7, output \"input\\n\" and \"wrong\\n\"", name,
				failed, out.String(), err.String())
		}
	}
	for name, e := range c.executors(c.Config, c.subresourceURL("exec",
		&corev1.PodExecOptions{Stdin: true, Stdout: true, TTY: true, Command: []string{"size"}})) {
		var out bytes.Buffer
		terminal := make(sizeQueue, 1)
		terminal <- remotecommand.TerminalSize{Width: 80, Height: 24}
		stdin, writer := io.Pipe()
		if err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Tty: true,
			TerminalSizeQueue: terminal}); err != nil || out.String() != "80x24\n" {
			t.Errorf("%s: got %q (%v), want the terminal size 80x24", name, out.String(), err)
		}
		_ = writer.Close()
		close(terminal)
	}
	for name, e := range c.executors(c.Config, c.subresourceURL("attach",
		&corev1.PodAttachOptions{Stdin: true, Stdout: true})) {
		var out bytes.Buffer
		if err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("input"),
			Stdout: &out}); err != nil || out.String() != "attached to p/c\ninput" {
			t.Errorf("%s: got %q (%v), want the greeting and the input", name, out.String(), err)
		}
	}
}

// TestPortForward checks that connections to a local port of the client are forwarded to a port of a Pod, over SPDY
// and WebSocket.
func TestPortForward(t *testing.T) {
	c := newCluster(t)
	pod := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	defer pod.Close()
	transport, upgrader, err := spdy.RoundTripperFor(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialer(c.subresourceURL("portforward", nil), c.Config)
	if err != nil {
		t.Fatal(err)
	}
	overSPDY := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST",
		c.subresourceURL("portforward", nil))
	for name, dialer := range map[string]httpstream.Dialer{"SPDY": overSPDY, "WebSocket": overWebSocket} {
		stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		forwarder, err := portforward.New(dialer, []string{"0:" + pod.URL[strings.LastIndex(pod.URL, ":")+1:]}, stop,
			ready, io.Discard, io.Discard)
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
			resp, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local), "text/plain",
				strings.NewReader(large))
			if err != nil {
				t.Fatal(name, err)
			}
			if text, err := io.ReadAll(resp.Body); err != nil || string(text) != large {
				t.Errorf("%s: got %d bytes (%v), want the request's %d bytes", name, len(text), err, len(large))
			}
			_ = resp.Body.Close()
		}
		close(stop)
		if err := <-ended; err != nil {
			t.Error(name, err)
		}
	}
}

// TestShutdownEndsStreams checks that a followed log is streamed while it is written. It also checks that the
// shutdown of the server ends the log stream and running commands.
func TestShutdownEndsStreams(t *testing.T) {
	c := newCluster(t)
	log, err := c.client.CoreV1().Pods("default").GetLogs("p", &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := "log of default/p/c\nasked with \"follow=true\"\n"
	if text, err := io.ReadAll(io.LimitReader(log, int64(len(want)))); err != nil || string(text) != want {
		t.Fatalf("got %q (%v), want %q", text, err, want)
	}
	ended := make(chan error, 2)
	executors := c.executors(c.Config, c.subresourceURL("exec",
		&corev1.PodExecOptions{Stdin: true, Stdout: true, Command: []string{"sh", "-c", "echo begun; cat"}}))
	for _, e := range executors {
		stdin, writer := io.Pipe()
		defer writer.Close()
		out, stdout := io.Pipe()
		go func() {
			ended <- e.StreamWithContext(context.Background(),
				remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout})
		}()
		if _, err := io.ReadFull(out, make([]byte, len("begun\n"))); err != nil {
			t.Fatal(err)
		}
	}
	c.Stop()
	if rest, _ := io.ReadAll(log); len(rest) > 0 {
		t.Errorf("got %q of the log after the shutdown, want nothing", rest)
	}
	for range executors {
		<-ended
	}
}

// TestExecRequiresCreate checks that exec requires the verb create. A user with only get is rejected, whether the
// client uses POST or GET.
func TestExecRequiresCreate(t *testing.T) {
	c := newCluster(t)
	may := func(name, verbs string) *rest.Config { return c.User(name, testserver.May(verbs, "pods/exec")) }
	for name, config := range map[string]*rest.Config{"SPDY WebSocket": may("both", "get,create"),
		"SPDY": may("creator", "create"), "": may("reader", "get")} {
		for by, e := range c.executors(config, c.subresourceURL("exec",
			&corev1.PodExecOptions{Stdout: true, Command: []string{"true"}})) {
			err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
			allowed := strings.Contains(name, by)
			if (err == nil) != allowed || !allowed && !strings.Contains(err.Error(), "forbidden") {
				t.Errorf("user for %q by %s: got error %v, want allowed %t", name, by, err, allowed)
			}
		}
	}
}

// TestNodeProxyExecRequiresCreate checks requests of a user who has the verb get on nodes/proxy, but not the verb
// create. The user can read paths of a kubelet, but cannot connect to containers. The spelling of the path does not
// matter.
func TestNodeProxyExecRequiresCreate(t *testing.T) {
	c := newCluster(t)
	reader := c.User("reader", testserver.May("get", "nodes/proxy"))
	creator := c.User("creator", testserver.May("get,create", "nodes/proxy"))
	status := func(config *rest.Config, path string) int {
		t.Helper()
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.Config.Host+"/api/v1/nodes/"+path,
			nil)
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
		"n/proxy/exec/default/p/c?command=true&output=1", "n/proxy/run/default/p/c?cmd=true",
		"n/proxy/attach/default/p/c", "n/proxy/portForward/default/p",
		"https:n:10250/proxy/exec/default/p/c", "n/proxy//exec/default/p/c", "n/proxy/pods/%2e%2e/exec/default/p/c",
		"n/proxy/%65xec/default/p/c", "n/proxy/exec",
	} {
		if code := status(reader, path); code != http.StatusForbidden {
			t.Errorf("%s with get: got code %d, want 403", path, code)
		}
		if code := status(creator, path); code == http.StatusForbidden {
			t.Errorf("%s with get and create: got code %d, want another", path, code)
		}
	}
	for _, path := range []string{"n/proxy/pods", "n/proxy/containerLogs/default/p/c", "n/proxy/executions"} {
		if code := status(reader, path); code == http.StatusForbidden {
			t.Errorf("%s with get: got code %d, want another", path, code)
		}
	}
}

// TestExecAdmissionPolicy checks that admission policies are evaluated for exec. Their object is the
// PodExecOptions.
func TestExecAdmissionPolicy(t *testing.T) {
	c := newCluster(t)
	policy := `{"metadata":{"name":"calm"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CONNECT"],"resources":["pods/exec"]}]},
		"validations":[{"expression":"object.kind == 'PodExecOptions' && object.command[0] != 'rm' && object.container == 'c'","message":"not that"}]}}`
	binding := `{"metadata":{"name":"calm"},"spec":{"policyName":"calm","validationActions":["Deny"]}}`
	for kind, text := range map[string]string{"validatingadmissionpolicies": policy,
		"validatingadmissionpolicybindings": binding} {
		post := c.client.AdmissionregistrationV1().RESTClient().Post().Resource(kind).Body([]byte(text))
		if err := post.Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	for command, allowed := range map[string]bool{"true": true, "rm": false} {
		for by, e := range c.executors(c.Config, c.subresourceURL("exec",
			&corev1.PodExecOptions{Stdout: true, Container: "c", Command: []string{command}})) {
			err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
			if (err == nil) != allowed || !allowed && !strings.Contains(err.Error(), "not that") {
				t.Errorf("command %s by %s: got error %v, want allowed %t", command, by, err, allowed)
			}
		}
	}
}
