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

// farName is a name that the proxy of tunnelled alone knows.
const farName = "kubernetes-remote-server.example"

// tapped is a connection of which somebody keeps what goes by.
type tapped struct {
	net.Conn
	mu         sync.Mutex
	sent, came bytes.Buffer
}

func (c *tapped) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.sent.Write(p)
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *tapped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	c.came.Write(p[:n])
	c.mu.Unlock()
	return n, err
}

// tunnelled is a server whose name a SOCKS5 proxy alone knows, and a client's configuration that has both names.
type tunnelled struct {
	*testserver.Server
	through *rest.Config
	proxy   *url.URL

	mu    sync.Mutex
	conns []*tapped
}

func newTunnelled(t *testing.T) *tunnelled {
	t.Helper()
	w := &tunnelled{Server: testserver.Start(t)}
	to, err := url.Parse(w.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	l, ended := listen(t), make(chan struct{})
	p := &socks5.Server{
		MaxConnections: socks5.MaxConnections, HandshakeTimeout: socks5.HandshakeTimeout, DialTimeout: socks5.DialTimeout, Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != net.JoinHostPort(farName, to.Port()) {
				return nil, errors.New("no such host")
			}
			conn, err := (&net.Dialer{}).DialContext(ctx, network, to.Host)
			if err != nil {
				return nil, err
			}
			tap := &tapped{Conn: conn}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.conns = append(w.conns, tap)
			return tap, nil
		},
	}
	go func() {
		p.Serve(t.Context(), l)
		close(ended)
	}()
	t.Cleanup(func() { <-ended })
	w.proxy = &url.URL{Scheme: "socks5", Host: l.Addr().String()}
	w.through = rest.CopyConfig(w.Config)
	w.through.Host, w.through.TLSClientConfig.ServerName = "https://"+net.JoinHostPort(farName, to.Port()), "127.0.0.1"
	w.through.Proxy = http.ProxyURL(w.proxy)
	return w
}

// isTLS is true of bytes that are records of TLS (RFC 8446, section 5.1), the last of which may be cut off.
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

// SOX-003 SOX-014: what goes through the proxy are records of TLS and nothing else, of HTTP/2 with a watch that stays open. The server's
// certificate is verified as without it.
func TestThroughSOCKS5(t *testing.T) {
	w := newTunnelled(t)
	client := kubernetes.NewForConfigOrDie(w.through).CoreV1().ConfigMaps("default")
	watch, err := client.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if _, err := client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a-name-to-look-for"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := range watch.ResultChan() {
		if e.Object.(*corev1.ConfigMap).Name == "a-name-to-look-for" {
			break
		}
	}
	bare, err := rest.HTTPClientFor(w.through)
	if err != nil {
		t.Fatal(err)
	}
	defer bare.CloseIdleConnections()
	resp, err := bare.Get(w.through.Host + "/version")
	if err != nil {
		t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.ProtoMajor != 2 || resp.StatusCode != http.StatusOK {
		t.Errorf("%s, %s", resp.Proto, resp.Status)
	}
	w.mu.Lock()
	for _, c := range w.conns {
		c.mu.Lock()
		for _, all := range [][]byte{c.sent.Bytes(), c.came.Bytes()} {
			if len(all) == 0 || !isTLS(all) || bytes.Contains(all, []byte("a-name-to-look-for")) {
				t.Errorf("the proxy sees %q", all)
			}
		}
		c.mu.Unlock()
	}
	if len(w.conns) == 0 {
		t.Error("nothing goes through the proxy")
	}
	w.mu.Unlock()
	for what, spoil := range map[string]func(*rest.TLSClientConfig){
		"unknown authority": func(c *rest.TLSClientConfig) { c.CAData = testserver.Start(t).Config.CAData },
		"not " + farName:    func(c *rest.TLSClientConfig) { c.ServerName = "" },
	} {
		wrong := rest.CopyConfig(w.through)
		spoil(&wrong.TLSClientConfig)
		if _, err := kubernetes.NewForConfigOrDie(wrong).Discovery().ServerVersion(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// SOX-013: a program of the package extension finds its main server by the proxy-url of its kubeconfig: whom to believe, who may do what, and
// which namespaces there are.
func TestExtensionThroughSOCKS5(t *testing.T) {
	w := newTunnelled(t)
	c, err := clientcmd.LoadFromFile(w.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, cluster := range c.Clusters {
		cluster.Server, cluster.TLSServerName, cluster.ProxyURL = w.through.Host, "127.0.0.1", w.proxy.String()
	}
	if err := clientcmd.WriteToFile(*c, w.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	s, err := extension.Start(t.Context(), extension.Config{Kubeconfig: w.Kubeconfig, Kinds: []extension.Kind{{Manifest: []byte(boats)}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	}()
	admin := rest.CopyConfig(w.Config)
	admin.Host, admin.CAData = s.URL(), s.CA()
	eventually(t.Context(), t, "the administrator may list", func() error {
		return kubernetes.NewForConfigOrDie(admin).RESTClient().Get().AbsPath("/apis/example.com/v1/namespaces/default/boats").Do(t.Context()).Error()
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
