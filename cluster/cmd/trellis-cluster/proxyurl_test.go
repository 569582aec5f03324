package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trellis-k8s/trellis/internal/socks5"
)

// remoteServerName is a host name for the API server. Only the proxies of the tests can resolve it.
const remoteServerName = "kubernetes-remote-server.example"

// useRemoteName changes the fixture's kubeconfig. The URL of the server then contains remoteServerName, and the
// proxy-url is the parameter proxy.
func (f *fixture) useRemoteName(proxy string) {
	f.Helper()
	c, err := clientcmd.LoadFromFile(f.server.Kubeconfig)
	f.must(err)
	for _, cluster := range c.Clusters {
		at, err := url.Parse(cluster.Server)
		f.must(err)
		cluster.Server = "https://" + net.JoinHostPort(remoteServerName, at.Port())
		cluster.TLSServerName, cluster.ProxyURL = "127.0.0.1", proxy
	}
	f.must(clientcmd.WriteToFile(*c, f.server.Kubeconfig))
}

// dialServer is the dialer of the proxies. It connects to the API server if the host in address is remoteServerName.
func (f *fixture) dialServer(ctx context.Context, network, address string) (net.Conn, error) {
	at, err := url.Parse(f.server.Config.Host)
	if err != nil {
		return nil, err
	}
	if address != net.JoinHostPort(remoteServerName, at.Port()) {
		return nil, errors.New("no such host")
	}
	return (&net.Dialer{}).DialContext(ctx, network, at.Host)
}

// checkDeployment checks that the Pod of a Deployment becomes available and that a Pod reaches the API server. Both
// require the scheduler, the controllers and a node.
func (f *fixture) checkDeployment() {
	f.Helper()
	one := int32(1)
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "d"}}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{Replicas: &one, Selector: selector},
	}
	d.Spec.Template.Labels = d.Spec.Selector.MatchLabels
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "busybox",
		Command: []string{"sh", "-c", "exec sleep 1000000"}}}
	_, err := f.AppsV1().Deployments("default").Create(f.Context(), d, metav1.CreateOptions{})
	f.must(err)
	waitFor(f, f.AppsV1().Deployments("default"), "d",
		func(d *appsv1.Deployment) bool { return d.Status.AvailableReplicas == 1 })
	f.checkPodReachesServer("client")
}

// TestSOCKS5Proxy checks that all parts of trellis-cluster, and the Pods of its nodes, reach the API server through the
// SOCKS5 proxy in the kubeconfig's proxy-url. SOX-013
func TestSOCKS5Proxy(t *testing.T) {
	f := newFullFixture(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	f.must(err)
	ended := make(chan struct{})
	p := &socks5.Server{
		MaxConnections: socks5.MaxConnections, HandshakeTimeout: socks5.HandshakeTimeout,
		DialTimeout: socks5.DialTimeout,
		Dial:        f.dialServer, Logger: slog.New(slog.DiscardHandler),
	}
	go func() {
		p.Serve(t.Context(), l)
		close(ended)
	}()
	t.Cleanup(func() { <-ended })
	f.useRemoteName("socks5://" + l.Addr().String())
	f.startNodes(1, "busybox=/bin")
	f.checkDeployment()
}

// TestHTTPProxy checks that all parts of trellis-cluster, and the Pods of its nodes, reach the API server through the
// HTTP proxy in the environment variable HTTPS_PROXY. SOX-013
func TestHTTPProxy(t *testing.T) {
	f := newFullFixture(t)
	var connections atomic.Int64
	p := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		target, err := f.dialServer(r.Context(), "tcp", r.Host)
		if name, password, _ := proxyAuthorization(r); r.Method != http.MethodConnect || err != nil || name != "user" ||
			password != "pass word" {
			http.Error(rw, "no", http.StatusForbidden)
			return
		}
		defer func() { _ = target.Close() }()
		connections.Add(1)
		rw.WriteHeader(http.StatusOK)
		client, buffered, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = client.Close() }()
		go func() {
			_, _ = io.Copy(target, buffered)
			_ = target.Close()
		}()
		_, _ = io.Copy(client, target)
	}))
	t.Cleanup(p.Close)
	at, err := url.Parse(p.URL)
	f.must(err)
	at.User = url.UserPassword("user", "pass word")
	f.useRemoteName("")
	link := filepath.Join(t.TempDir(), "trellis-cluster")
	f.must(os.Symlink(program(t, ""), link))
	// The program env sets the variable only for this command. In the environment of the test, the variable would also
	// affect the API server.
	startCommand(t, exec.Command("env", append([]string{"HTTPS_PROXY=" + at.String(), "NO_PROXY=other.example", link},
		f.upArgs(f.newNodesDir(1), 1, "busybox=/bin")...)...))
	f.checkDeployment()
	if connections.Load() == 0 {
		t.Error("no connection through the proxy")
	}
}

// proxyAuthorization returns the credentials in the header Proxy-Authorization.
func proxyAuthorization(r *http.Request) (name, password string, ok bool) {
	basic := &http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
	return basic.BasicAuth()
}
