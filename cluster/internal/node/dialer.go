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

// dialTimeout is the timeout for connecting a Pod to the API server, including the connection to a proxy.
const dialTimeout = 10 * time.Second

// apiServerDialer returns a function that connects to the API server in the same way as clients with the given
// configuration. The function uses the proxy in the kubeconfig's proxy-url or in the environment. As in net/http, the
// TLS settings of the kubeconfig also apply to an HTTPS proxy.
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

// proxyFor returns the proxy for the API server. This is the proxy of the kubeconfig, or else the proxy that net/http
// selects by HTTPS_PROXY and NO_PROXY. nil means no proxy.
func proxyFor(client *rest.Config, server *url.URL) (*url.URL, error) {
	if client.Proxy != nil {
		return client.Proxy(&http.Request{URL: server})
	}
	return httpproxy.FromEnvironment().ProxyFunc()(server)
}
