// Package tunnel implements tunnelled connections. A tunnelled connection consists of two Endpoints, which are
// peers: each passes the data that it receives to the other. An Endpoint is a socket, an HTTP/2 stream, one of
// many connections in the packets of a stream, or a net.Conn for use by this program. Only a Socket has a
// goroutine, which reads; other Endpoints have none. The package must not import anything that authorizes or
// routes connections.
package tunnel

import (
	"errors"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
)

// lingerTimeout is the time without progress after which data sent before the end of a connection is discarded.
const lingerTimeout = 30 * time.Second

// Endpoint is one end of a tunnelled connection, as seen by its peer. No method blocks. Send and CloseWrite are
// not called concurrently.
type Endpoint interface {
	// Send sends data that the peer has received. It takes ownership of the Buffer, and releases it when the
	// data is sent.
	Send(b *h2.Buffer)
	// CloseWrite ends the sending direction after the data that was sent before.
	CloseWrite()
	// Close ends the connection after the data that was sent before. err is the reason if the connection has
	// failed. A connection that was cancelled or has stalled ends at once.
	Close(err error)
}

// UnpairedEndpoint is an Endpoint that has no peer yet.
type UnpairedEndpoint interface {
	Endpoint
	// Pair sets the peer. It is called once.
	Pair(peer Endpoint)
}

// DialFunc opens a connection to an address (host:port) without blocking. It calls done once, with the
// connection or an error. done must pair the connection before it returns. cancel cancels the dial. done may
// still receive a connection after that, and must then close it.
type DialFunc func(address string, done func(UnpairedEndpoint, error)) (cancel func())

var (
	errCancelled = errors.New("dial cancelled")
	errEnded     = errors.New("other end of the tunnel has ended the stream")
	errLost      = errors.New("tunnel connection lost")
)

// abortsNow reports whether a connection that ends with err discards the data that was sent before.
func abortsNow(err error) bool { return errors.Is(err, errCancelled) || errors.Is(err, errStalled) }
