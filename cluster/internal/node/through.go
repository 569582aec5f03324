package node

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
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

// connect makes connections to the API server as clients of its kubeconfig do: through the proxy of its proxy-url or of the environment,
// if that names one.
type connect func(ctx context.Context) (net.Conn, error)

func connector(client *rest.Config) (connect, error) {
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
	to, direct := withPort(base), &net.Dialer{}
	switch {
	case through == nil:
		return func(ctx context.Context) (net.Conn, error) { return direct.DialContext(ctx, "tcp", to) }, nil
	case strings.HasPrefix(through.Scheme, "socks5"):
		socks, err := proxy.FromURL(through, direct)
		if err != nil {
			return nil, fmt.Errorf("the proxy of the API server: %w", err)
		}
		return func(ctx context.Context) (net.Conn, error) { return socks.(proxy.ContextDialer).DialContext(ctx, "tcp", to) }, nil
	}
	secrets, err := rest.TLSConfigFor(client)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (net.Conn, error) { return tunnel(ctx, through, secrets, to) }, nil
}

// tunnel asks an HTTP proxy for a connection (CONNECT, RFC 9110).
func tunnel(ctx context.Context, through *url.URL, secrets *tls.Config, to string) (_ net.Conn, err error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", withPort(through))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			raw.Close()
		}
	}()
	stop, conn := context.AfterFunc(ctx, func() { raw.Close() }), raw
	if through.Scheme == "https" {
		own := &tls.Config{ServerName: through.Hostname()}
		if secrets != nil { // client-go believes a proxy whom it believes the server
			own.RootCAs = secrets.RootCAs
		}
		conn = tls.Client(conn, own)
	}
	ask := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: to}, Host: to, Header: http.Header{}}
	if u := through.User; u != nil {
		password, _ := u.Password()
		ask.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
	}
	if err := ask.Write(conn); err != nil {
		return nil, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), ask) // and no more: the client of TLS speaks first
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 1024))
		return nil, fmt.Errorf("proxy %s: %s: %s", through.Redacted(), answer.Status, said)
	}
	if !stop() {
		return nil, errors.Join(ctx.Err(), errors.New("it took the proxy too long"))
	}
	return conn, nil
}
