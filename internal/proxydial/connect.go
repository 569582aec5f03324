// Package proxydial opens connections through proxies. It supports HTTP CONNECT (RFC 9110, section 9.3.6) and SOCKS5
// (RFC 1928).
package proxydial

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	maxAnswerBytes = 64 << 10    // bytes of a response header and the data received with it
	maxReasonBytes = 1 << 10     // bytes that are read of the body of a refusal
	reasonWait     = time.Second // limit for reading the body of a refusal
)

// ErrNotHTTP is the error for a proxy whose response is not HTTP/1.
var ErrNotHTTP = errors.New("not an HTTP/1 response")

// Connect requests a connection to address (host:port) from the proxy at the other end of conn. It returns the
// connection to that address. ctx limits the time of the request. If Connect returns an error, it closes conn, and
// the error contains proxy, the name of the proxy.
func Connect(ctx context.Context, conn net.Conn, proxy, address string, user *url.Userinfo) (net.Conn, error) {
	inTime := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	through, err := request(conn, address, user)
	if !inTime() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("proxy error from %s while dialing %q, %w", proxy, address, err) // upstream's message
	}
	return through, nil
}

// request sends a CONNECT request and reads the response.
func request(conn net.Conn, address string, user *url.Userinfo) (net.Conn, error) {
	connect := &http.Request{Method: http.MethodConnect, URL: &url.URL{}, Host: address,
		Header: http.Header{"User-Agent": {"trellis"}}}
	if user != nil {
		password, _ := user.Password()
		connect.Header.Set("Proxy-Authorization",
			"Basic "+base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	if err := connect.WriteProxy(conn); err != nil { // rejects an address that would add text to the request
		return nil, err
	}
	in := bufio.NewReader(io.LimitReader(conn, maxAnswerBytes))
	switch start, err := in.Peek(len("HTTP/1")); {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%w: the proxy closed the connection", ErrNotHTTP)
	case err != nil:
		return nil, fmt.Errorf("no response: %w", err)
	case string(start) != "HTTP/1":
		return nil, fmt.Errorf("%w: %q", ErrNotHTTP, start)
	}
	resp, err := http.ReadResponse(in, connect)
	if err != nil {
		return nil, fmt.Errorf("read the response: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("code %d: %s%s", resp.StatusCode, resp.Status, reason(conn, resp.Body))
	}
	early, _ := in.Peek(in.Buffered())
	if len(early) == 0 {
		return conn, nil
	}
	return &prefixed{conn, io.MultiReader(bytes.NewReader(early), conn)}, nil
}

// reason returns the first line of the body of a refusal.
func reason(conn net.Conn, body io.Reader) string {
	_ = conn.SetReadDeadline(time.Now().Add(reasonWait)) // a body without a length may never end
	line, _ := bufio.NewReader(io.LimitReader(body, maxReasonBytes)).ReadString('\n')
	if line = strings.TrimSpace(line); line == "" {
		return ""
	}
	return ": " + line
}

// prefixed is a connection that first returns data that has already been read from it.
type prefixed struct {
	net.Conn
	in io.Reader
}

// Read implements net.Conn.
func (p *prefixed) Read(b []byte) (int, error) { return p.in.Read(b) }

// CloseWrite closes the write side, as net.TCPConn does.
func (p *prefixed) CloseWrite() error {
	half, ok := p.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}
