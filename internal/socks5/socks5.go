// Package socks5 is a SOCKS5 proxy (RFC 1928) that behaves like the one of "ssh -D": the command CONNECT alone, nobody is asked who they
// are, and names are resolved where it runs.
package socks5

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/things-go/go-socks5"
	"github.com/things-go/go-socks5/bufferpool"
	"github.com/things-go/go-socks5/statute"
)

// Limits of a Server that names none.
const (
	MaxConnections   = 1000             // at a time; "ssh -D" has as many as it has file descriptors
	HandshakeTimeout = 10 * time.Second // until a client has said where it wants to go
	DialTimeout      = 10 * time.Second // until a connection to there is made
)

const (
	// acceptPause is how long a listener that fails, as for want of file descriptors, is let be.
	acceptPause = 100 * time.Millisecond
	// copyBytes are copied at a time, where the system does not copy by itself.
	copyBytes = 32 << 10
)

// Server is a proxy. Its fields are set before Serve, and all but Dial have to be.
type Server struct {
	MaxConnections                int
	HandshakeTimeout, DialTimeout time.Duration
	// Dial connects to a host, which may be a name, and its port; nil: a net.Dialer does.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Logger hears of each connection that ends badly.
	Logger *slog.Logger
}

// Serve answers what comes in until ctx is done, or somebody closes the listener. Both end all connections, which are gone when it returns.
func (s *Server) Serve(ctx context.Context, l net.Listener) {
	var open sync.WaitGroup
	defer open.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = l.Close() })
	seats, buffers := make(chan struct{}, s.MaxConnections), bufferpool.NewPool(copyBytes)
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.Logger.Warn("cannot accept a connection", "error", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case seats <- struct{}{}:
			open.Go(func() {
				defer func() { <-seats }()
				s.serve(ctx, conn, buffers)
			})
		default:
			_ = conn.Close()
			s.Logger.Warn("refused a connection: there are as many as there may be", "connections", s.MaxConnections, "from", conn.RemoteAddr())
		}
	}
}

// serve answers one connection until its end, or that of ctx.
func (s *Server) serve(ctx context.Context, conn net.Conn, buffers bufferpool.BufPool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(s.HandshakeTimeout)) // an error would come back with the first read
	client, err := speaksSOCKS5(conn)
	if err == nil {
		err = s.proxy(ctx, buffers).ServeConn(client)
	}
	_ = conn.Close()
	if err != nil && !leaving(err) {
		s.Logger.Warn("a connection has failed", "error", err, "from", conn.RemoteAddr())
	}
}

// speaksSOCKS5 refuses clients that begin otherwise, which the library would wait for, or not name. The connection that it returns has all
// that came.
func speaksSOCKS5(conn net.Conn) (net.Conn, error) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn, nil
	}
	first := []byte{0}
	if _, err := io.ReadFull(conn, first); err != nil {
		return conn, err
	}
	what := fmt.Sprintf("what begins with the byte %d", first[0])
	switch {
	case first[0] == statute.VersionSocks5:
		return &begunConn{tcp, first}, nil
	case first[0] == 4:
		what = "SOCKS4"
	case first[0] == 0x16:
		what = "TLS"
	case 'A' <= first[0] && first[0] <= 'Z':
		what = "HTTP"
	}
	return conn, fmt.Errorf("the client speaks %s, and this is a SOCKS5 proxy: name it socks5:// there", what)
}

// begunConn is a connection of which a byte has been read. The system may still copy what follows by itself.
type begunConn struct {
	*net.TCPConn
	first []byte
}

// Read implements net.Conn.
func (c *begunConn) Read(b []byte) (int, error) {
	if n := copy(b, c.first); n > 0 {
		c.first = c.first[n:]
		return n, nil
	}
	return c.TCPConn.Read(b)
}

// leaving is true of how connections end when one side just goes. Of most errors the library keeps the text alone.
func leaving(err error) bool {
	for _, end := range []error{io.EOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if strings.HasSuffix(err.Error(), end.Error()) {
			return true
		}
	}
	return false
}

// proxy is the library's server for one connection. It begins nothing by itself. Where it has connected to is left with ctx: a client
// that says no more would not have it end.
func (s *Server) proxy(ctx context.Context, buffers bufferpool.BufPool) *socks5.Server {
	dial := s.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return socks5.NewServer(
		socks5.WithBufferPool(buffers),
		socks5.WithResolver(unresolved{}),
		socks5.WithDial(func(_ context.Context, network, address string) (net.Conn, error) {
			dialing, cancel := context.WithTimeout(ctx, s.DialTimeout)
			defer cancel()
			to, err := dial(dialing, network, address)
			if err == nil {
				context.AfterFunc(ctx, func() { _ = to.Close() })
			}
			return to, err
		}),
		socks5.WithConnectMiddleware(func(_ context.Context, client io.Writer, _ *socks5.Request) error {
			return client.(net.Conn).SetDeadline(time.Time{}) // it has said where to, and may be silent for days now
		}),
		socks5.WithAssociateHandle(func(_ context.Context, client io.Writer, r *socks5.Request) error {
			return errors.Join(fmt.Errorf("UDP to %s: only CONNECT is served", r.DestAddr), socks5.SendReply(client, statute.RepCommandNotSupported, nil))
		}),
	)
}

// unresolved leaves names to the dialer, which tries all addresses of both families.
type unresolved struct{}

// Resolve implements socks5.NameResolver.
func (unresolved) Resolve(ctx context.Context, _ string) (context.Context, net.IP, error) {
	return ctx, nil, nil
}
