package selector

import (
	"bufio"
	"bytes"
	"context"
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

// viaConnect opens a connection to the tunnel server and asks for one by HTTP CONNECT (RFC 9110, 9.3.6).
func (t *tunnel) viaConnect(ctx context.Context, address string) (net.Conn, error) {
	conn, err := t.connect(ctx)
	if err != nil {
		return nil, err
	}
	inTime := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	through, err := askConnect(conn, t.address, address)
	if !inTime() {
		err = fmt.Errorf("ask the tunnel server at %s for %s: %w", t.address, address, context.Cause(ctx))
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return through, nil
}

// askConnect asks the tunnel server at the other end of conn for a connection to address. What is returned reads and writes that one.
func askConnect(conn net.Conn, server, address string) (net.Conn, error) {
	request := &http.Request{Method: http.MethodConnect, URL: &url.URL{}, Host: address, Header: http.Header{"User-Agent": {"trellis"}}}
	if err := request.WriteProxy(conn); err != nil { // no address can add to the request
		return nil, fmt.Errorf("ask the tunnel server at %s for %q: %w", server, address, err)
	}
	in := bufio.NewReader(io.LimitReader(conn, maxAnswerBytes))
	if err := speaksHTTP1(in); err != nil {
		return nil, fmt.Errorf("ask the tunnel server at %s for %s: %w", server, address, err)
	}
	answer, err := http.ReadResponse(in, request)
	if err != nil {
		return nil, fmt.Errorf("ask the tunnel server at %s for %s: its answer: %w", server, address, err)
	}
	if answer.StatusCode != http.StatusOK { // in upstream's words, but for the reason
		return nil, fmt.Errorf("proxy error from %s while dialing %s, code %d: %s%s", server, address, answer.StatusCode, answer.Status, reason(conn, answer.Body))
	}
	early, _ := in.Peek(in.Buffered())
	if len(early) == 0 {
		return conn, nil
	}
	return &prefixed{conn, io.MultiReader(bytes.NewReader(early), conn)}, nil
}

// speaksHTTP1 is an error where the answer is none of HTTP/1, but may be a gRPC server's.
func speaksHTTP1(in *bufio.Reader) error {
	const hint = "this server has proxyProtocol HTTPConnect: does that one run with --mode=http-connect, or with --mode=grpc?"
	start, err := in.Peek(len("HTTP/1"))
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("it has closed the connection without an answer; %s", hint)
	case err != nil:
		return fmt.Errorf("no answer: %w", err)
	case string(start) != "HTTP/1":
		return fmt.Errorf("it answers with %q, which is not HTTP/1; %s", start, hint)
	}
	return nil
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
