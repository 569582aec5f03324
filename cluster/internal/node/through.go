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

// dialTimeout is how long it may take to reach the API server for a Pod, by way of a proxy if there is one.
const dialTimeout = 10 * time.Second

// connector connects to the API server as clients of a kubeconfig do: through the proxy of its proxy-url or of the environment, if there
// is one. To a proxy of https the TLS of the kubeconfig applies, as net/http has it.
func connector(client *rest.Config) (func(context.Context) (net.Conn, error), error) {
	base, _, err := rest.DefaultServerUrlFor(client)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	secure, err := rest.TLSConfigFor(client)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	through, err := proxyFor(client, base)
	if err != nil {
		return nil, fmt.Errorf("the proxy of the API server: %w", err)
	}
	dial, err := proxydial.New(through, secure)
	return func(ctx context.Context) (net.Conn, error) { return dial(ctx, "tcp", withPort(base)) }, err
}

// proxyFor is the proxy of a kubeconfig, or else that of the environment (HTTPS_PROXY, NO_PROXY), as net/http chooses it; nil: none.
func proxyFor(client *rest.Config, server *url.URL) (*url.URL, error) {
	if client.Proxy != nil {
		return client.Proxy(&http.Request{URL: server})
	}
	return httpproxy.FromEnvironment().ProxyFunc()(server)
}
