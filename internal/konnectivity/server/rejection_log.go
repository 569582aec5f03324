package server

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
)

// rejectionLog logs failed connections to a port and agents that are rejected without a review. It logs at most
// one line per second, so that unauthenticated clients cannot flood the log.
type rejectionLog struct {
	logger                            *slog.Logger
	notHTTP2Message, handshakeMessage string // messages that include a hint about the cause
	limiter                           rate.Sometimes
}

func newRejectionLog(logger *slog.Logger, notHTTP2Message, handshakeMessage string) *rejectionLog {
	return &rejectionLog{
		logger:           logger,
		notHTTP2Message:  notHTTP2Message,
		handshakeMessage: handshakeMessage,
		limiter:          rate.Sometimes{Interval: time.Second},
	}
}

// log logs why a connection has ended if the client uses another protocol or the TLS handshake has failed.
func (r *rejectionLog) log(conn net.Conn, err error) {
	message := r.handshakeMessage
	switch {
	case errors.Is(err, h2.ErrNotHTTP2):
		message = r.notHTTP2Message
	case !handshakeFailed(conn, err):
		return
	}
	r.limiter.Do(func() { r.logger.Warn(message, "from", conn.RemoteAddr(), "error", err) })
}

// handshakeFailed reports whether the TLS handshake failed. It reports false for clients that disconnect during
// the handshake and for connections that the server closes.
func handshakeFailed(conn net.Conn, err error) bool {
	tlsConn, ok := conn.(*tls.Conn)
	if !ok || tlsConn.ConnectionState().HandshakeComplete {
		return false
	}
	for _, expected := range []error{
		io.EOF, syscall.ECONNRESET, h2.ErrClosed, errTooManyUnauthenticated, errNotAuthenticated,
	} {
		if errors.Is(err, expected) {
			return false
		}
	}
	return true
}
