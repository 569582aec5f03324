package node

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/proxy"
	"k8s.io/client-go/rest"
)

// dialTimeout is how long it may take to reach the API server for a Pod, by way of a proxy if there is one.
const dialTimeout = 10 * time.Second

type dial func(ctx context.Context, network, address string) (net.Conn, error)

// connector connects to the API server as clients of a kubeconfig do: through the proxy of its proxy-url or of the environment, if there is one.
func connector(client *rest.Config) (func(context.Context) (net.Conn, error), error) {
	base, _, err := rest.DefaultServerUrlFor(client)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	find := client.Proxy
	if find == nil {
		find = http.ProxyFromEnvironment
	}
	through, err := find(&http.Request{URL: base})
	if err != nil {
		return nil, fmt.Errorf("the proxy of the API server: %w", err)
	}
	by, err := dialer(client, through)
	return func(ctx context.Context) (net.Conn, error) { return by(ctx, "tcp", withPort(base)) }, err
}

// dialer connects through a proxy, unless that is nil.
func dialer(client *rest.Config, through *url.URL) (dial, error) {
	direct := &net.Dialer{}
	switch {
	case through == nil:
		return direct.DialContext, nil
	case strings.HasPrefix(through.Scheme, "socks5"):
		socks, err := proxy.FromURL(through, direct)
		if err != nil {
			return nil, fmt.Errorf("the proxy of the API server: %w", err)
		}
		return socks.(proxy.ContextDialer).DialContext, nil
	case through.Scheme == "https": // client-go believes a proxy by the CA by which it believes the server
		secrets, err := rest.TLSConfigFor(client)
		if err != nil || secrets == nil {
			secrets = &tls.Config{}
		}
		return tunnel(through, (&tls.Dialer{Config: &tls.Config{RootCAs: secrets.RootCAs}}).DialContext), err
	}
	return tunnel(through, direct.DialContext), nil
}

// tunnel asks an HTTP proxy for a connection (CONNECT, RFC 9110), over which the client of TLS speaks first.
func tunnel(through *url.URL, by dial) dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := by(ctx, network, withPort(through))
		if err != nil {
			return nil, err
		}
		_ = conn.SetDeadline(time.Now().Add(dialTimeout))
		ask := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
		if u := through.User; u != nil {
			password, _ := u.Password()
			ask.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
		}
		var answer *http.Response
		if err = ask.Write(conn); err == nil {
			answer, err = http.ReadResponse(bufio.NewReader(conn), ask)
		}
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("the proxy %s: %s", through.Redacted(), answer.Status)
		}
		if err != nil {
			conn.Close()
			return nil, err
		}
		return conn, conn.SetDeadline(time.Time{})
	}
}
