package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

// Options say how a session is had.
type Options struct {
	ID, Identifiers string
	Token           func() (string, error)
	TLS             *tls.Config
	KeepaliveTime   time.Duration
	Dial            func(ctx context.Context, network, address string) (net.Conn, error)
	Metrics         *Metrics
}

// Session is a tunnel to one server.
type Session struct{}

// Connect opens one. ctx is that of connecting alone.
func Connect(ctx context.Context, address string, o Options) (*Session, error) {
	c, err := (&tls.Dialer{Config: o.TLS}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return nil, errors.Join(errors.New("there are no tunnels yet"), c.Close())
}

// ServerID is the server's.
func (s *Session) ServerID() string { return "" }

// ServerCount is how many there are, as the server says.
func (s *Session) ServerCount() int { return 0 }

// Run serves until the connection ends.
func (s *Session) Run() error { return nil }

// Drain asks the server for no new connections.
func (s *Session) Drain() {}

// Close ends the connection, and with it Run.
func (s *Session) Close() {}
