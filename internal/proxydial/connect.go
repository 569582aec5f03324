// Package proxydial is the client's side of proxies for connections: HTTP CONNECT (RFC 9110, 9.3.6) and SOCKS5 (RFC 1928).
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
	maxAnswerBytes = 64 << 10    // of the header of an answer, with what follows it at once
	maxReasonBytes = 1 << 10     // of what a refusal says,
	reasonWait     = time.Second // and how long that is waited for
)

// ErrNotHTTP is that of a proxy whose answer is none of HTTP/1.
var ErrNotHTTP = errors.New("no answer of HTTP/1")

// Connect asks the proxy at the other end of conn for a connection to address (host:port), until ctx is done. What it returns reads and
// writes that one. An error closes conn; it names the proxy as at does.
func Connect(ctx context.Context, conn net.Conn, at, address string, user *url.Userinfo) (net.Conn, error) {
	inTime := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	through, err := ask(conn, address, user)
	if !inTime() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("proxy error from %s while dialing %q, %w", at, address, err) // upstream's words
	}
	return through, nil
}

func ask(conn net.Conn, address string, user *url.Userinfo) (net.Conn, error) {
	request := &http.Request{Method: http.MethodConnect, URL: &url.URL{}, Host: address, Header: http.Header{"User-Agent": {"trellis"}}}
	if user != nil {
		password, _ := user.Password()
		request.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	if err := request.WriteProxy(conn); err != nil { // no address can add to the request
		return nil, err
	}
	in := bufio.NewReader(io.LimitReader(conn, maxAnswerBytes))
	switch start, err := in.Peek(len("HTTP/1")); {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%w: it has closed the connection", ErrNotHTTP)
	case err != nil:
		return nil, fmt.Errorf("no answer: %w", err)
	case string(start) != "HTTP/1":
		return nil, fmt.Errorf("%w: %q", ErrNotHTTP, start)
	}
	answer, err := http.ReadResponse(in, request)
	if err != nil {
		return nil, fmt.Errorf("its answer: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("code %d: %s%s", answer.StatusCode, answer.Status, reason(conn, answer.Body))
	}
	early, _ := in.Peek(in.Buffered())
	if len(early) == 0 {
		return conn, nil
	}
	return &prefixed{conn, io.MultiReader(bytes.NewReader(early), conn)}, nil
}

// reason is the first line that a refusal says.
func reason(conn net.Conn, body io.Reader) string {
	_ = conn.SetReadDeadline(time.Now().Add(reasonWait)) // one without a length may never end
	line, _ := bufio.NewReader(io.LimitReader(body, maxReasonBytes)).ReadString('\n')
	if line = strings.TrimSpace(line); line == "" {
		return ""
	}
	return ": " + line
}

// prefixed is a connection of which something has been read already.
type prefixed struct {
	net.Conn
	in io.Reader
}

// Read implements net.Conn.
func (p *prefixed) Read(b []byte) (int, error) { return p.in.Read(b) }

// CloseWrite says that nothing more will be written, as net.TCPConn does.
func (p *prefixed) CloseWrite() error {
	half, ok := p.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}
