package agent

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"strconv"

	"golang.org/x/net/http/httpproxy"

	"github.com/trellis-k8s/trellis/internal/proxydial"
)

// proxyFor returns the proxy for an address of a server from the environment (HTTPS_PROXY, NO_PROXY), as gRPC
// and net/http select it. nil means a direct connection.
func proxyFor(address string) (*url.URL, error) {
	return httpproxy.FromEnvironment().ProxyFunc()(&url.URL{Scheme: "https", Host: address})
}

// dialServer connects to a server at an address. NO_PROXY may list the address or the servers' name.
func dialServer(ctx context.Context, address string, tlsConfig *tls.Config) (net.Conn, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	proxy, err := proxyFor(net.JoinHostPort(tlsConfig.ServerName, port))
	if proxy != nil {
		proxy, err = proxyFor(address)
	}
	if err != nil {
		return nil, err
	}
	config := tlsConfig.Clone()
	config.ServerName = "" // the proxy's certificate must be valid for the proxy's own name
	dial, err := proxydial.New(proxy, config)
	if err != nil {
		return nil, err
	}
	return dial(ctx, "tcp", address)
}

// lookupHost returns the addresses of the servers' name. It returns the name itself if a proxy resolves it.
func (c *Config) lookupHost(ctx context.Context, host string) ([]string, error) {
	proxy, err := proxyFor(net.JoinHostPort(host, strconv.Itoa(c.Port)))
	if proxy != nil || err != nil {
		return []string{host}, err
	}
	return net.DefaultResolver.LookupHost(ctx, host)
}
