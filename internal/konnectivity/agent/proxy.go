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

// proxyFor is the proxy of the environment (HTTPS_PROXY, NO_PROXY) for a server, as gRPC and net/http choose it; nil: none.
func proxyFor(address string) (*url.URL, error) {
	return httpproxy.FromEnvironment().ProxyFunc()(&url.URL{Scheme: "https", Host: address})
}

// dialServer connects to a server at an address. NO_PROXY may have that, or the name that the servers are known by.
func dialServer(ctx context.Context, address string, secure *tls.Config) (net.Conn, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	by, err := proxyFor(net.JoinHostPort(secure.ServerName, port))
	if by != nil {
		by, err = proxyFor(address)
	}
	if err != nil {
		return nil, err
	}
	config := secure.Clone()
	config.ServerName = "" // the proxy's is its own
	dial, err := proxydial.New(by, config)
	if err != nil {
		return nil, err
	}
	return dial(ctx, "tcp", address)
}

// lookupHost returns the addresses of the servers' name; that name where a proxy looks it up.
func (c *Config) lookupHost(ctx context.Context, host string) ([]string, error) {
	by, err := proxyFor(net.JoinHostPort(host, strconv.Itoa(c.Port)))
	if by != nil || err != nil {
		return []string{host}, err
	}
	return net.DefaultResolver.LookupHost(ctx, host)
}
