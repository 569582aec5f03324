package node

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/http/httpproxy"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/proxydial"
)

// dialTimeout is the timeout of a connection to the API server for a Pod, including a proxy.
const dialTimeout = 10 * time.Second

// apiServerDialer returns a function that connects to the API server as clients with this configuration do. It uses the
// proxy of the kubeconfig's proxy-url or of the environment. The TLS settings of the kubeconfig also apply to an HTTPS
// proxy, as in net/http.
func apiServerDialer(client *rest.Config) (func(context.Context) (net.Conn, error), error) {
	base, _, err := rest.DefaultServerUrlFor(client)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	tlsConfig, err := rest.TLSConfigFor(client)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	proxy, err := proxyFor(client, base)
	if err != nil {
		return nil, fmt.Errorf("cannot determine the proxy of the API server: %w", err)
	}
	dial, err := proxydial.New(proxy, tlsConfig)
	return func(ctx context.Context) (net.Conn, error) { return dial(ctx, "tcp", withPort(base)) }, err
}

// proxyFor returns the proxy of a kubeconfig, or else the proxy of the environment (HTTPS_PROXY, NO_PROXY) as net/http
// selects it. nil means no proxy.
func proxyFor(client *rest.Config, server *url.URL) (*url.URL, error) {
	if client.Proxy != nil {
		return client.Proxy(&http.Request{URL: server})
	}
	return httpproxy.FromEnvironment().ProxyFunc()(server)
}
