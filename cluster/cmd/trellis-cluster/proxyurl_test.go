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

// remoteServerName is the API server's for those that come through a proxy. Nobody else knows it.
const remoteServerName = "kubernetes-remote-server.example"

// useRemoteName has the world's kubeconfig name the API server so, and a proxy if it is given one.
func (f *fixture) useRemoteName(proxy string) {
	f.Helper()
	c, err := clientcmd.LoadFromFile(f.server.Kubeconfig)
	f.must(err)
	for _, cluster := range c.Clusters {
		at, err := url.Parse(cluster.Server)
		f.must(err)
		cluster.Server, cluster.TLSServerName, cluster.ProxyURL = "https://"+net.JoinHostPort(remoteServerName, at.Port()), "127.0.0.1", proxy
	}
	f.must(clientcmd.WriteToFile(*c, f.server.Kubeconfig))
}

// dialServer connects to the API server, if that is asked for by its name at the far end.
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

// checkDeployment needs the scheduler, the controllers, a node, and the way from a Pod to the API server.
func (f *fixture) checkDeployment() {
	f.Helper()
	one := int32(1)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "d"}}}}
	d.Spec.Template.Labels = d.Spec.Selector.MatchLabels
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "busybox", Command: []string{"sh", "-c", "exec sleep 1000000"}}}
	_, err := f.AppsV1().Deployments("default").Create(f.Context(), d, metav1.CreateOptions{})
	f.must(err)
	waitFor(f, f.AppsV1().Deployments("default"), "d", func(d *appsv1.Deployment) bool { return d.Status.AvailableReplicas == 1 })
	f.checkPodReachesServer("asks")
}

// SOX-013: all that is started by trellis-cluster, and the Pods of its nodes, come to the API server through the proxy-url of the kubeconfig.
func TestSOCKS5Proxy(t *testing.T) {
	f := newFullFixture(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	f.must(err)
	ended := make(chan struct{})
	p := &socks5.Server{
		MaxConnections: socks5.MaxConnections, HandshakeTimeout: socks5.HandshakeTimeout, DialTimeout: socks5.DialTimeout,
		Dial: f.dialServer, Logger: slog.New(slog.DiscardHandler),
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

// SOX-013: so do they by HTTPS_PROXY, here one that speaks HTTP.
func TestHTTPProxy(t *testing.T) {
	f := newFullFixture(t)
	var asked atomic.Int64
	p := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		target, err := f.dialServer(r.Context(), "tcp", r.Host)
		if name, password, _ := proxyAuthorization(r); r.Method != http.MethodConnect || err != nil || name != "somebody" || password != "pass word" {
			http.Error(rw, "no", http.StatusForbidden)
			return
		}
		defer func() { _ = target.Close() }()
		asked.Add(1)
		rw.WriteHeader(http.StatusOK)
		client, said, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = client.Close() }()
		go func() {
			_, _ = io.Copy(target, said)
			_ = target.Close()
		}()
		_, _ = io.Copy(client, target)
	}))
	t.Cleanup(p.Close)
	at, err := url.Parse(p.URL)
	f.must(err)
	at.User = url.UserPassword("somebody", "pass word")
	f.useRemoteName("")
	link := filepath.Join(t.TempDir(), "trellis-cluster")
	f.must(os.Symlink(program(t, ""), link))
	// In the environment of this process it would be the API server's, too.
	startCommand(t, exec.Command("env", append([]string{"HTTPS_PROXY=" + at.String(), "NO_PROXY=other.example", link}, f.upArgs(f.newNodesDir(1), 1, "busybox=/bin")...)...))
	f.checkDeployment()
	if asked.Load() == 0 {
		t.Error("nobody has asked the proxy")
	}
}

// proxyAuthorization is who somebody says to be to a proxy.
func proxyAuthorization(r *http.Request) (name, password string, said bool) {
	as := &http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
	return as.BasicAuth()
}
