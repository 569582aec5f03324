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

// refusals logs connections to a port that were closed as who came is not whom it is for, and agents that were refused without a review:
// one a second at most, so that strangers do not flood the log.
type refusals struct {
	logger             *slog.Logger
	noHTTP2, untrusted string // what may be wrong
	often              rate.Sometimes
}

func newRefusals(logger *slog.Logger, noHTTP2, untrusted string) *refusals {
	return &refusals{logger: logger, noHTTP2: noHTTP2, untrusted: untrusted, often: rate.Sometimes{Interval: time.Second}}
}

// log says how a connection has ended, if that is worth it.
func (r *refusals) log(conn net.Conn, err error) {
	message := r.untrusted
	switch {
	case errors.Is(err, h2.ErrNotHTTP2):
		message = r.noHTTP2
	case !handshakeFailed(conn, err):
		return
	}
	r.often.Do(func() { r.logger.Warn(message, "from", conn.RemoteAddr(), "error", err) })
}

// handshakeFailed says that the two sides did not agree on TLS. Who goes without a word, or is sent away by the server, had no part in it.
func handshakeFailed(conn net.Conn, err error) bool {
	secure, ok := conn.(*tls.Conn)
	if !ok || secure.ConnectionState().HandshakeComplete {
		return false
	}
	for _, other := range []error{io.EOF, syscall.ECONNRESET, h2.ErrClosed, errTooManyStrangers, errNobody} {
		if errors.Is(err, other) {
			return false
		}
	}
	return true
}
