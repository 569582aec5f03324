package proxydial

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"

	"golang.org/x/net/proxy"
)

// Dial opens a connection to a host and port; a proxy looks the host up.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// New returns the Dial through the proxy at a URL, of the schemes that net/http.Transport takes; nil: directly. As there, secure is for
// the server and for a proxy of https alike: unless it has a ServerName, the proxy's certificate has to be for the host of the URL.
func New(at *url.URL, secure *tls.Config) (Dial, error) {
	direct := &net.Dialer{}
	if at == nil {
		return direct.DialContext, nil
	}
	switch at.Scheme {
	case "http":
		return connecting(at, "80", direct.DialContext), nil
	case "https":
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if secure != nil {
			config = secure.Clone()
		}
		config.NextProtos = nil // CONNECT is asked for by HTTP/1.1
		return connecting(at, "443", (&tls.Dialer{Config: config}).DialContext), nil
	case "socks5", "socks5h":
		d, err := proxy.FromURL(at, direct)
		if err != nil {
			return nil, fmt.Errorf("the proxy %s: %w", at.Redacted(), err)
		}
		return d.(proxy.ContextDialer).DialContext, nil
	}
	return nil, fmt.Errorf("the proxy %s: its scheme must be http, https, socks5 or socks5h", at.Redacted())
}

// connecting is the Dial of a proxy that speaks HTTP.
func connecting(at *url.URL, port string, dial Dial) Dial {
	if at.Port() != "" {
		port = at.Port()
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, net.JoinHostPort(at.Hostname(), port))
		if err != nil {
			return nil, fmt.Errorf("connect to the proxy %s: %w", at.Redacted(), err)
		}
		return Connect(ctx, conn, at.Redacted(), address, at.User)
	}
}
