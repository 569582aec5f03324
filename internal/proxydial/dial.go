package proxydial

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"

	"golang.org/x/net/proxy"
)

// Dial opens a connection to a host and port. A proxy resolves the host itself.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// New returns a Dial that connects through the proxy at a URL, or directly if the URL is nil. It supports the schemes
// that net/http.Transport supports. config is used for the TLS connection to an https proxy. If it has no ServerName,
// the proxy's certificate must be valid for the URL's host.
func New(proxyURL *url.URL, config *tls.Config) (Dial, error) {
	direct := &net.Dialer{}
	if proxyURL == nil {
		return direct.DialContext, nil
	}
	switch proxyURL.Scheme {
	case "http":
		return viaConnect(proxyURL, "80", direct.DialContext), nil
	case "https":
		client := &tls.Config{MinVersion: tls.VersionTLS12}
		if config != nil {
			client = config.Clone()
		}
		client.NextProtos = nil // CONNECT requests use HTTP/1.1
		return viaConnect(proxyURL, "443", (&tls.Dialer{Config: client}).DialContext), nil
	case "socks5", "socks5h":
		d, err := proxy.FromURL(proxyURL, direct)
		if err != nil {
			return nil, fmt.Errorf("proxy %s: %w", proxyURL.Redacted(), err)
		}
		return d.(proxy.ContextDialer).DialContext, nil
	}
	return nil, fmt.Errorf("proxy %s: the scheme must be http, https, socks5 or socks5h", proxyURL.Redacted())
}

// viaConnect returns a Dial that connects to the proxy with dial and sends a CONNECT request.
func viaConnect(proxyURL *url.URL, port string, dial Dial) Dial {
	if proxyURL.Port() != "" {
		port = proxyURL.Port()
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, net.JoinHostPort(proxyURL.Hostname(), port))
		if err != nil {
			return nil, fmt.Errorf("connect to proxy %s: %w", proxyURL.Redacted(), err)
		}
		return Connect(ctx, conn, proxyURL.Redacted(), address, proxyURL.User)
	}
}
