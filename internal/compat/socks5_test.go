package compat_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trellis-k8s/trellis/extension"
	"github.com/trellis-k8s/trellis/internal/socks5"
	"github.com/trellis-k8s/trellis/testserver"
)

// proxyOnlyName is a host name that only the proxy of a proxiedServer can resolve.
const proxyOnlyName = "kubernetes-remote-server.example"

// recordedConn is a connection that records the transferred bytes.
type recordedConn struct {
	net.Conn
	mu             sync.Mutex
	sent, received bytes.Buffer
}

func (c *recordedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.sent.Write(p)
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *recordedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	c.received.Write(p[:n])
	c.mu.Unlock()
	return n, err
}

// proxiedServer is a server behind a SOCKS5 proxy, which resolves proxyOnlyName to the server.
type proxiedServer struct {
	*testserver.Server
	through *rest.Config // connects to proxyOnlyName through the proxy
	proxy   *url.URL

	mu    sync.Mutex
	conns []*recordedConn
}

func newProxiedServer(t *testing.T) *proxiedServer {
	t.Helper()
	s := &proxiedServer{Server: testserver.Start(t)}
	target, err := url.Parse(s.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	l, ended := listen(t), make(chan struct{})
	p := &socks5.Server{
		MaxConnections: socks5.MaxConnections, HandshakeTimeout: socks5.HandshakeTimeout,
		DialTimeout: socks5.DialTimeout, Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != net.JoinHostPort(proxyOnlyName, target.Port()) {
				return nil, errors.New("no such host")
			}
			conn, err := (&net.Dialer{}).DialContext(ctx, network, target.Host)
			if err != nil {
				return nil, err
			}
			recorded := &recordedConn{Conn: conn}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.conns = append(s.conns, recorded)
			return recorded, nil
		},
	}
	go func() {
		p.Serve(t.Context(), l)
		close(ended)
	}()
	t.Cleanup(func() { <-ended })
	s.proxy = &url.URL{Scheme: "socks5", Host: l.Addr().String()}
	s.through = rest.CopyConfig(s.Config)
	s.through.Host = "https://" + net.JoinHostPort(proxyOnlyName, target.Port())
	s.through.TLSClientConfig.ServerName = "127.0.0.1"
	s.through.Proxy = http.ProxyURL(s.proxy)
	return s
}

// isTLS reports whether the bytes in all are a sequence of TLS records (RFC 8446, section 5.1). The last record may
// be incomplete.
func isTLS(all []byte) bool {
	for len(all) >= 5 {
		length := int(all[3])<<8 | int(all[4])
		if all[0] < 20 || all[0] > 23 || all[1] != 3 || length > 1<<14+256 {
			return false
		}
		all = all[min(len(all), 5+length):]
	}
	return true
}

// TestThroughSOCKS5 checks that only TLS records pass the proxy, that HTTP/2 and watches work through it, and that the
// server's certificate is verified (SOX-003 SOX-014).
func TestThroughSOCKS5(t *testing.T) {
	s := newProxiedServer(t)
	client := kubernetes.NewForConfigOrDie(s.through).CoreV1().ConfigMaps("default")
	watch, err := client.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if _, err := client.Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a-name-to-look-for"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := range watch.ResultChan() {
		if e.Object.(*corev1.ConfigMap).Name == "a-name-to-look-for" {
			break
		}
	}
	bare, err := rest.HTTPClientFor(s.through)
	if err != nil {
		t.Fatal(err)
	}
	defer bare.CloseIdleConnections()
	resp, err := bare.Get(s.through.Host + "/version")
	if err != nil {
		t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.ProtoMajor != 2 || resp.StatusCode != http.StatusOK {
		t.Errorf("got %s, %s, want HTTP/2 and 200", resp.Proto, resp.Status)
	}
	s.mu.Lock()
	for _, c := range s.conns {
		c.mu.Lock()
		for _, all := range [][]byte{c.sent.Bytes(), c.received.Bytes()} {
			if len(all) == 0 || !isTLS(all) || bytes.Contains(all, []byte("a-name-to-look-for")) {
				t.Errorf("got plain bytes at the proxy: %q", all)
			}
		}
		c.mu.Unlock()
	}
	if len(s.conns) == 0 {
		t.Error("got no connection through the proxy")
	}
	s.mu.Unlock()
	for want, change := range map[string]func(*rest.TLSClientConfig){
		"unknown authority":    func(c *rest.TLSClientConfig) { c.CAData = testserver.Start(t).Config.CAData },
		"not " + proxyOnlyName: func(c *rest.TLSClientConfig) { c.ServerName = "" },
	} {
		wrong := rest.CopyConfig(s.through)
		change(&wrong.TLSClientConfig)
		if _, err := kubernetes.NewForConfigOrDie(wrong).Discovery().ServerVersion(); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
}

// TestExtensionThroughSOCKS5 checks that a server built with package extension connects to its main server through
// the proxy-url of its kubeconfig. The extension server uses the main server for authentication, authorization and
// namespaces (SOX-013).
func TestExtensionThroughSOCKS5(t *testing.T) {
	main := newProxiedServer(t)
	c, err := clientcmd.LoadFromFile(main.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, cluster := range c.Clusters {
		cluster.Server, cluster.TLSServerName, cluster.ProxyURL = main.through.Host, "127.0.0.1", main.proxy.String()
	}
	if err := clientcmd.WriteToFile(*c, main.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	s, err := extension.Start(t.Context(), extension.Config{Kubeconfig: main.Kubeconfig,
		Kinds: []extension.Kind{{Manifest: []byte(boats)}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	}()
	admin := rest.CopyConfig(main.Config)
	admin.Host, admin.CAData = s.URL(), s.CA()
	eventually(t.Context(), t, "a successful list by the administrator", func() error {
		client := kubernetes.NewForConfigOrDie(admin).RESTClient()
		return client.Get().AbsPath("/apis/example.com/v1/namespaces/default/boats").Do(t.Context()).Error()
	})
}

const boats = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: boats, kind: Boat}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`
