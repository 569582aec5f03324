// Package tunnel is what tunnelled connections are made of: two Ends that know each other, each of which gives the other what arrives at
// it. An End is a socket, a stream of HTTP/2, or a connection among the packets of a stream. No End has a goroutine of its own but a
// Socket, which reads. It knows neither who may have a connection nor where it goes.
package tunnel

import (
	"errors"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
)

// lingerTimeout is how long what has been sent may take to arrive after the end of a connection.
const lingerTimeout = 30 * time.Second

// Endpoint is one end of a connection, as the other sees it. Nothing of it blocks. Send and CloseWrite are called by one at a time.
type Endpoint interface {
	// Send passes on what has arrived at the other End, and takes the Buffer, which is Released once it is through.
	Send(b *h2.Buffer)
	// CloseWrite says that nothing more will be sent.
	CloseWrite()
	// Close ends the connection, once what was sent before is through, with an error if there is one. Only a connection that nobody waits
	// for, or that is too slow, ends at once.
	Close(err error)
}

// UnpairedEndpoint is an End that has no other yet.
type UnpairedEndpoint interface {
	Endpoint
	// Pair gives it the other, once.
	Pair(other Endpoint)
}

// DialFunc opens a connection to an address (host:port). It does not block: answered is told once of the connection, or why there is none, and
// joins it before it returns. cancel gives up; answered may be told nevertheless, and then closes what it gets.
type DialFunc func(address string, answered func(UnpairedEndpoint, error)) (cancel func())

var (
	errCancelled = errors.New("the connection was given up")
	errEnded     = errors.New("the other side of the tunnel has ended the stream")
	errLost      = errors.New("the tunnel of the connection was lost")
)

// abortsNow says of an error that the connection which has it ends without what was sent before.
func abortsNow(err error) bool { return errors.Is(err, errCancelled) || errors.Is(err, errStalled) }
