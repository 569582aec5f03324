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

// rejectionLog logs connections to a port that were closed as who came is not whom it is for, and agents that were refused without a review:
// one a second at most, so that strangers do not flood the log.
type rejectionLog struct {
	logger                            *slog.Logger
	notHTTP2Message, handshakeMessage string // what may be wrong
	limiter                           rate.Sometimes
}

func newRejectionLog(logger *slog.Logger, noHTTP2, untrusted string) *rejectionLog {
	return &rejectionLog{logger: logger, notHTTP2Message: noHTTP2, handshakeMessage: untrusted, limiter: rate.Sometimes{Interval: time.Second}}
}

// log says how a connection has ended, if that is worth it.
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

// handshakeFailed says that the two sides did not agree on TLS. Who goes without a word, or is sent away by the server, had no part in it.
func handshakeFailed(conn net.Conn, err error) bool {
	secure, ok := conn.(*tls.Conn)
	if !ok || secure.ConnectionState().HandshakeComplete {
		return false
	}
	for _, other := range []error{io.EOF, syscall.ECONNRESET, h2.ErrClosed, errTooManyUnauthenticated, errNotAuthenticated} {
		if errors.Is(err, other) {
			return false
		}
	}
	return true
}
