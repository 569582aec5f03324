package server

import (
	"context"
	"errors"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

const (
	// failureHoldOff is the time for which an agent is avoided after a failed dial.
	failureHoldOff = 5 * time.Second
	// settleTime is the age from which a new connection of an agent is preferred. Behind a load balancer, an agent
	// may connect to the same server twice. It closes the second connection within this time.
	settleTime = time.Second
	// maxConnStreams is the maximum number of concurrent streams on a connection to the agent port.
	maxConnStreams = 4
	// maxUnauthenticatedStreams is the total number of streams that a connection may open before one of them has
	// authenticated an agent.
	maxUnauthenticatedStreams = 8
	// authenticationTimeout is the time within which one of the streams of a connection must have authenticated an
	// agent.
	authenticationTimeout = 30 * time.Second
)

// jwtPattern matches the form of ServiceAccount tokens (RFC 7515, 7.1).
var jwtPattern = regexp.MustCompile(`^[\w-]+\.[\w-]+\.[\w-]+$`)

// agentIDPattern limits agent IDs, which are usually host names or UUIDs, because they are logged.
var agentIDPattern = regexp.MustCompile(`^[ -~]{1,253}$`)

// errNoToken may be returned to unauthenticated clients.
var errNoToken = errors.New("no ServiceAccount token: set --service-account-token-path of the agent")

var errNotAuthenticated = errors.New("no agent has authenticated in time")

// ServeAgents accepts connections of agents until the listener is closed.
func (s *Server) ServeAgents(l net.Listener) error {
	rejections := newRejectionLog(s.options.Logger,
		"closed a connection to the agent port: the client does not speak HTTP/2",
		"TLS handshake failed at the agent port (check that agents trust --cluster-cert and, if --cluster-ca-cert "+
			"is set, have a certificate of one of its CAs)")
	return s.listen(l, func(conn net.Conn) {
		ac := &agentConn{Server: s, remote: conn.RemoteAddr(), rejections: rejections}
		c := h2.NewServer(conn, h2.Options{MaxStreams: maxConnStreams, Accept: ac.accept})
		ac.onAuthenticated = s.unauthenticated.add(c.Close)
		go func() {
			defer ac.onAuthenticated()
			timer := time.AfterFunc(authenticationTimeout, func() {
				if !ac.authenticated.Load() {
					c.Close(errNotAuthenticated)
				}
			})
			defer timer.Stop()
			rejections.log(conn, s.run(c, false, s.options.KeepaliveTime))
		}()
	})
}

// agentConn is a connection to the agent port.
type agentConn struct {
	*Server
	remote          net.Addr
	rejections      *rejectionLog
	streamCount     int
	authenticated   atomic.Bool // one of its streams has authenticated an agent
	onAuthenticated func()      // removes the connection from the unauthenticated ones
}

// agent is a stream with which an agent has connected. Tunnelled connections use the packets of this stream. With
// byConnect, they use other streams of the same HTTP/2 connection.
type agent struct {
	tunnel.Packets
	conn            *agentConn
	stream          *h2.Stream
	id              string
	identifiers     identifiers
	admittedAt      time.Time          // set before the agent is added to the registry, and not changed afterwards
	byConnect       bool               // each tunnelled connection has its own stream
	connCount       func() int         // number of tunnelled connections; with byConnect, also unanswered requests
	pendingConnects atomic.Int64       // unanswered requests, with byConnect
	cancelAuth      context.CancelFunc // cancels the authentication
	admitted        atomic.Bool
	gone            atomic.Bool               // the stream has ended
	lastFailure     atomic.Pointer[time.Time] // time of the last dial if it failed; nil if it succeeded
}

// accept accepts a stream of an agent, and authenticates the agent in the background.
func (ac *agentConn) accept(stream *h2.Stream, header []hpack.HeaderField) h2.Receiver {
	if ac.streamCount++; ac.streamCount > maxUnauthenticatedStreams && !ac.authenticated.Load() {
		stream.Conn().Close(errors.New("too many unauthenticated streams"))
		return nil
	}
	if path, _ := wire.Field(header, ":path"); path != wire.ConnectMethod {
		return reject(stream, wire.Unimplemented, "this port of the tunnel server serves only "+wire.ConnectMethod)
	}
	id, _ := wire.Field(header, wire.AgentID)
	if !agentIDPattern.MatchString(id) {
		return reject(stream, wire.Unknown, wire.AgentID+" must have 1 to 253 printable ASCII characters")
	}
	query, _ := wire.Field(header, wire.AgentIdentifiers)
	identifiers, err := parseIdentifiers(query)
	if err != nil {
		return reject(stream, wire.Unknown, err.Error())
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &agent{conn: ac, stream: stream, id: id, identifiers: identifiers, cancelAuth: cancel}
	a.Shared, a.OnPacket, a.OnStall = true, ac.metrics.onAgentPacket, ac.metrics.stalled.Inc
	a.OnEnd, a.connCount = a.disconnected, a.ConnCount
	a.Bind(stream)
	transport, _ := wire.Field(header, wire.Tunnel)
	if a.byConnect = transport == wire.TunnelByConnect && stream.Conn().TunnelEnabled(); a.byConnect {
		a.connCount = func() int { return stream.Conn().StreamCount() - 1 }
	}
	token, _ := wire.Field(header, wire.Authorization)
	go a.admit(ctx, token)
	return a
}

// admit authenticates the agent and adds it to the registry, or rejects its stream.
func (a *agent) admit(ctx context.Context, authorization string) {
	defer a.cancelAuth()
	options := a.conn.options
	if err := a.authenticate(ctx, authorization); err != nil {
		warn := func() {
			options.Logger.Warn("agent rejected", "agent", a.id, "from", a.conn.remote, "error", err)
		}
		message := "the agent's token is not accepted: see the log of the tunnel server"
		switch {
		case errors.Is(err, errNoToken):
			message = err.Error()
			fallthrough
		case errors.Is(err, errReviewQueue), ctx.Err() != nil: // clients can cause any number of these
			a.conn.rejections.limiter.Do(warn)
		default: // operators need each of these
			warn()
		}
		a.stream.Header(wire.TrailersOnly(wire.Unauthenticated, message), true)
		a.stream.Close(nil)
		return
	}
	metadata := []string{wire.ServerID, options.ID, wire.ServerCount, strconv.Itoa(options.Count)}
	if a.byConnect {
		metadata = append(metadata, wire.Tunnel, wire.TunnelByConnect)
	}
	a.admitted.Store(true)
	a.conn.authenticated.Store(true)
	a.conn.onAuthenticated()
	a.stream.Header(wire.Response(metadata...), false)
	a.admittedAt = time.Now() // an agent that closes a duplicate connection does so when it receives the response
	a.conn.agents.add(a)
	if a.gone.Load() { // the agent has disconnected in the meantime
		a.conn.agents.remove(a)
	}
}

// authenticate reviews the agent's token when a slot for the review is free. It returns an error if the token is
// not accepted.
func (a *agent) authenticate(ctx context.Context, authorization string) error {
	authenticate := a.conn.options.Authenticate
	if authenticate == nil {
		return nil
	}
	token, bearer := strings.CutPrefix(authorization, "Bearer ")
	if !bearer || !jwtPattern.MatchString(token) {
		return errNoToken
	}
	host, _, _ := net.SplitHostPort(a.conn.remote.String())
	return a.conn.reviews.review(ctx, a.id, host, func(ctx context.Context) error { return authenticate(ctx, token) })
}

// dial requests a connection from the agent.
func (a *agent) dial(address string, done func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
	if !a.byConnect {
		return a.Dial(address, done)
	}
	a.pendingConnects.Add(1)
	return tunnel.Connect(a.stream.Conn())(address, func(peer tunnel.UnpairedEndpoint, err error) {
		a.pendingConnects.Add(-1)
		if errors.Is(err, h2.ErrGoingAway) { // no stream IDs are left, so the agent must reconnect

			a.stream.Conn().GoAway()
		}
		done(peer, err)
	})
}

// established returns the number of connections that the agent has opened. It never returns a negative number,
// although a failed dial can be removed from connCount before it is removed from pendingConnects.
func (a *agent) established() int { return max(0, a.connCount()-int(a.pendingConnects.Load())) }

// recordDial records the result of a dial.
func (a *agent) recordDial(err error) {
	if err == nil {
		a.lastFailure.Store(nil)
		return
	}
	now := time.Now()
	a.lastFailure.Store(&now)
}

// isFailing reports whether the last dial failed recently.
func (a *agent) isFailing() bool {
	failed := a.lastFailure.Load()
	return failed != nil && time.Since(*failed) < failureHoldOff
}

// isSettled reports whether the agent has had time to close the connection if it is a duplicate.
func (a *agent) isSettled() bool { return !a.byConnect || time.Since(a.admittedAt) > settleTime }

// Data implements h2.Receiver.
func (a *agent) Data(s *h2.Stream, b *h2.Buffer, end bool) {
	if b != nil && !a.admitted.Load() {
		b.Release()
		a.Reset(errors.New("agent has sent packets before it was admitted"))
		return
	}
	a.Packets.Data(s, b, end)
}

// disconnected removes the agent from the registry because its stream has ended. With byConnect, it also closes
// the connection and so all tunnelled connections.
func (a *agent) disconnected(err error) {
	a.cancelAuth()
	a.gone.Store(true)
	a.conn.agents.remove(a)
	if a.stream.Close(wire.Trailer(wire.OK, "")); a.byConnect {
		a.stream.Conn().Close(err)
	}
}

// reject answers a stream with a gRPC status.
func reject(s *h2.Stream, code int, message string) h2.Receiver {
	s.Header(wire.TrailersOnly(code, message), true)
	return h2.DiscardReceiver{}
}
