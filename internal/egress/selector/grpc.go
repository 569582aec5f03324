package selector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/client"
)

const reasonWait = time.Second // for what a server says that hangs up

// hintGRPC is what a tunnel server may be that is not understood.
const hintGRPC = "this server has proxyProtocol GRPC: does that one run with --mode=grpc, or with --mode=http-connect?"

// viaGRPC asks for connections by the gRPC service ProxyService, over one connection to the tunnel server that they share.
func (s *Selector) viaGRPC(to *entrance) func(ctx context.Context, address string) (net.Conn, error) {
	shared := client.New(func(ctx context.Context) (net.Conn, error) {
		conn, err := to.connect(ctx)
		switch {
		case err == nil:
			return &frames{Conn: conn, begun: make(chan struct{})}, nil
		case strings.Contains(err.Error(), "no application protocol"): // an alert of TLS, for which there is no error value
			return nil, unreachableError{fmt.Errorf("%w; %s", err, hintGRPC)}
		}
		return nil, err
	})
	s.close = append(s.close, shared.Close)
	return func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := shared.DialContext(ctx, "tcp", address)
		if unreachable := (unreachableError{}); errors.As(err, &unreachable) {
			return nil, unreachable
		}
		if err != nil {
			return nil, fmt.Errorf("ask the tunnel server at %s for %s: %w", to.address, address, err)
		}
		return conn, nil
	}
}

// frames is a connection that must not begin with an answer of HTTP/1.
type frames struct {
	net.Conn
	begin sync.Once
	begun chan struct{} // closed when something has been read
	wrong error         // of that; set before
}

// Read implements net.Conn.
func (f *frames) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	f.begin.Do(func() {
		if bytes.HasPrefix(b[:n], []byte("HTTP")) { // the length of no frame
			line, _, _ := bytes.Cut(b[:n], []byte("\r\n"))
			f.wrong = fmt.Errorf("it answers %q; %s", line, hintGRPC)
		}
		close(f.begun)
	})
	if f.wrong != nil {
		return 0, f.wrong
	}
	return n, err
}

// Write implements net.Conn. Where the other side has hung up at once, it may have said why.
func (f *frames) Write(b []byte) (int, error) {
	n, err := f.Conn.Write(b)
	if err == nil {
		return n, nil
	}
	select {
	case <-f.begun:
		if f.wrong != nil {
			err = f.wrong
		}
	case <-time.After(reasonWait):
	}
	return n, err
}
