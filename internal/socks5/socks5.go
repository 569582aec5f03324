// Package socks5 implements a SOCKS5 proxy (RFC 1928) like that of "ssh -D". It supports only the command CONNECT and
// no authentication, and resolves host names itself.
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

// Default limits of a Server.
const (
	MaxConnections   = 1000             // concurrent connections; "ssh -D" is limited by its file descriptors
	HandshakeTimeout = 10 * time.Second // limit for receiving a client's request
	DialTimeout      = 10 * time.Second // limit for connecting to the destination
)

const (
	// acceptPause is the pause after a failed Accept, for example because there are no file descriptors left.
	acceptPause = 100 * time.Millisecond
	// copyBytes is the size of a buffer for copying. The buffer is used if the kernel cannot copy between the
	// connections.
	copyBytes = 32 << 10
)

// Server is a proxy. All fields except Dial must be set before Serve is called.
type Server struct {
	MaxConnections                int
	HandshakeTimeout, DialTimeout time.Duration
	// Dial connects to a host name or IP address and a port. nil means a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Logger logs each connection that fails.
	Logger *slog.Logger
}

// Serve serves connections until ctx is done or the listener is closed. Before it returns, it closes all connections.
func (s *Server) Serve(ctx context.Context, l net.Listener) {
	var open sync.WaitGroup
	defer open.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = l.Close() })
	slots, buffers := make(chan struct{}, s.MaxConnections), bufferpool.NewPool(copyBytes)
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
		case slots <- struct{}{}:
			open.Go(func() {
				defer func() { <-slots }()
				s.serve(ctx, conn, buffers)
			})
		default:
			_ = conn.Close()
			s.Logger.Warn("rejected a connection: the maximum number of connections is reached",
				"connections", s.MaxConnections, "from", conn.RemoteAddr())
		}
	}
}

// serve serves one connection until it ends or ctx is done.
func (s *Server) serve(ctx context.Context, conn net.Conn, buffers bufferpool.BufPool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(s.HandshakeTimeout)) // if this fails, the first read fails too
	client, err := checkVersion(conn)
	if err == nil {
		err = s.proxy(ctx, buffers).ServeConn(client)
	}
	_ = conn.Close()
	if err != nil && !isDisconnect(err) {
		s.Logger.Warn("connection failed", "error", err, "from", conn.RemoteAddr())
	}
}

// checkVersion rejects clients that use another protocol. Without this check, the SOCKS5 library would wait for
// more data, or return an error without the protocol's name. The first byte can be read again from the returned
// connection.
func checkVersion(conn net.Conn) (net.Conn, error) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn, nil
	}
	first := []byte{0}
	if _, err := io.ReadFull(conn, first); err != nil {
		return conn, err
	}
	protocol := fmt.Sprintf("an unknown protocol that begins with the byte %d", first[0])
	switch {
	case first[0] == statute.VersionSocks5:
		return &peekedConn{tcp, first}, nil
	case first[0] == 4:
		protocol = "SOCKS4"
	case first[0] == 0x16:
		protocol = "TLS"
	case 'A' <= first[0] && first[0] <= 'Z':
		protocol = "HTTP"
	}
	return conn, fmt.Errorf("the client uses %s, but this is a SOCKS5 proxy: configure it as socks5:// in the client",
		protocol)
}

// peekedConn is a TCP connection whose first byte has been read. Read returns this byte again. The kernel can
// still copy the following data.
type peekedConn struct {
	*net.TCPConn
	first []byte
}

// Read implements net.Conn.
func (c *peekedConn) Read(b []byte) (int, error) {
	if n := copy(b, c.first); n > 0 {
		c.first = c.first[n:]
		return n, nil
	}
	return c.TCPConn.Read(b)
}

// isDisconnect reports whether an error means that one side closed the connection. It compares texts, because the
// SOCKS5 library does not wrap most errors.
func isDisconnect(err error) bool {
	for _, end := range []error{io.EOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if strings.HasSuffix(err.Error(), end.Error()) {
			return true
		}
	}
	return false
}

// proxy returns the SOCKS5 library's server for one connection. The server starts no goroutines. When ctx is done,
// it closes the connection to the destination. This also ends a connection whose client sends nothing.
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
			return client.(net.Conn).SetDeadline(time.Time{}) // an established connection may be idle for days
		}),
		socks5.WithAssociateHandle(func(_ context.Context, client io.Writer, r *socks5.Request) error {
			return errors.Join(fmt.Errorf("UDP to %s is not supported: this proxy supports only CONNECT", r.DestAddr),
				socks5.SendReply(client, statute.RepCommandNotSupported, nil))
		}),
	)
}

// unresolved is a resolver that does not resolve host names. The dialer resolves them and tries all addresses of
// both IP families.
type unresolved struct{}

// Resolve implements socks5.NameResolver.
func (unresolved) Resolve(ctx context.Context, _ string) (context.Context, net.IP, error) {
	return ctx, nil, nil
}
