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
	// failureHoldOff is how long an agent is passed over after a dial that has failed.
	failureHoldOff = 5 * time.Second
	// settleTime is how long it takes an agent at most to close a connection to a server that it has met already, as it does behind a
	// load balancer.
	settleTime                = time.Second
	maxConnStreams            = 4                // of a connection, and
	maxUnauthenticatedStreams = 8                // in all, before one of them is an agent's,
	authenticationTimeout     = 30 * time.Second // which one has to be by then
)

// jwtPattern is what tokens of ServiceAccounts look like (RFC 7515, 7.1).
var jwtPattern = regexp.MustCompile(`^[\w-]+\.[\w-]+\.[\w-]+$`)

// agentIDPattern is what agents may be called, who write it into the log: they have names of hosts, or UUIDs.
var agentIDPattern = regexp.MustCompile(`^[ -~]{1,253}$`)

// errNoToken may be told to strangers.
var errNoToken = errors.New("no token of a ServiceAccount: the agent needs --service-account-token-path")

var errNotAuthenticated = errors.New("no agent has said who it is")

// ServeAgents serves agents until the listener is closed.
func (s *Server) ServeAgents(l net.Listener) error {
	refused := newRejectionLog(s.options.Logger, "a connection to the port for agents was closed",
		"a TLS handshake at the port for agents failed; have they a certificate of --cluster-ca-cert, if that is given, and do they trust --cluster-cert?")
	return s.listen(l, func(conn net.Conn) {
		p := &agentConn{Server: s, remote: conn.RemoteAddr(), rejections: refused}
		c := h2.NewServer(conn, h2.Options{MaxStreams: maxConnStreams, Accept: p.accept})
		p.onAuthenticated = s.unauthenticated.add(c.Close)
		go func() {
			defer p.onAuthenticated()
			stranger := time.AfterFunc(authenticationTimeout, func() {
				if !p.authenticated.Load() {
					c.Close(errNotAuthenticated)
				}
			})
			defer stranger.Stop()
			refused.log(conn, s.run(c, false, s.options.KeepaliveTime))
		}()
	})
}

// agentConn is the other end of a connection to the port for agents.
type agentConn struct {
	*Server
	remote          net.Addr
	rejections      *rejectionLog
	streamCount     int
	authenticated   atomic.Bool // in, as an agent
	onAuthenticated func()      // says so to strangers
}

// agent is the stream of an agent that has connected, and what is opened by it.
type agent struct {
	tunnel.Packets
	conn            *agentConn
	stream          *h2.Stream
	id              string
	identifiers     identifiers
	admittedAt      time.Time          // was let in; it may be read once it is among the agents
	byConnect       bool               // has a stream for each connection
	connCount       func() int         // how many connections it has, those that it has not answered for included if it connects
	pendingConnects atomic.Int64       // of these
	cancelAuth      context.CancelFunc // of its authentication
	admitted        atomic.Bool
	gone            atomic.Bool
	lastFailure     atomic.Pointer[time.Time] // when its last dial did; nil: it did not
}

// accept takes a stream of an agent.
func (p *agentConn) accept(stream *h2.Stream, header []hpack.HeaderField) h2.Receiver {
	if p.streamCount++; p.streamCount > maxUnauthenticatedStreams && !p.authenticated.Load() {
		stream.Conn().Close(errors.New("too many streams of nobody that is known"))
		return nil
	}
	if path, _ := wire.Field(header, ":path"); path != wire.ConnectMethod {
		return reject(stream, wire.Unimplemented, "this port of the tunnel server serves "+wire.ConnectMethod+" alone")
	}
	id, _ := wire.Field(header, wire.AgentID)
	if !agentIDPattern.MatchString(id) {
		return reject(stream, wire.Unknown, "an agent says who it is by "+wire.AgentID+", in at most 253 printable characters of ASCII")
	}
	said, _ := wire.Field(header, wire.AgentIdentifiers)
	identifiers, err := parseIdentifiers(said)
	if err != nil {
		return reject(stream, wire.Unknown, err.Error())
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &agent{conn: p, stream: stream, id: id, identifiers: identifiers, cancelAuth: cancel}
	a.Shared, a.OnPacket, a.OnStall = true, p.metrics.onAgentPacket, p.metrics.stalled.Inc
	a.OnEnd, a.connCount = a.disconnected, a.ConnCount
	a.Bind(stream)
	by, _ := wire.Field(header, wire.Tunnel)
	if a.byConnect = by == wire.TunnelByConnect && stream.Conn().TunnelEnabled(); a.byConnect {
		a.connCount = func() int { return stream.Conn().StreamCount() - 1 }
	}
	token, _ := wire.Field(header, wire.Authorization)
	go a.admit(ctx, token)
	return a
}

// admit has the agent open connections, if it may.
func (a *agent) admit(ctx context.Context, authorization string) {
	defer a.cancelAuth()
	o := a.conn.options
	if err := a.authenticate(ctx, authorization); err != nil {
		warn := func() { o.Logger.Warn("an agent was refused", "agent", a.id, "from", a.conn.remote, "error", err) }
		told := "the agent's token is not accepted: the log of the tunnel server says why"
		switch {
		case errors.Is(err, errNoToken):
			told = err.Error()
			fallthrough
		case errors.Is(err, errReviewQueue), ctx.Err() != nil: // strangers may have as many of these as they like
			a.conn.rejections.limiter.Do(warn)
		default: // operators look for it
			warn()
		}
		a.stream.Header(wire.TrailersOnly(wire.Unauthenticated, told), true)
		a.stream.Close(nil)
		return
	}
	metadata := []string{wire.ServerID, o.ID, wire.ServerCount, strconv.Itoa(o.Count)}
	if a.byConnect {
		metadata = append(metadata, wire.Tunnel, wire.TunnelByConnect)
	}
	a.admitted.Store(true)
	a.conn.authenticated.Store(true)
	a.conn.onAuthenticated()
	a.stream.Header(wire.Response(metadata...), false)
	a.admittedAt = time.Now() // it closes the connection, if it does, by what it has just been told
	a.conn.agents.add(a)
	if a.gone.Load() { // meanwhile
		a.conn.agents.remove(a)
	}
}

// authenticate has its token reviewed at its turn.
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

// dial has it open a connection.
func (a *agent) dial(address string, answered func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
	if !a.byConnect {
		return a.Dial(address, answered)
	}
	a.pendingConnects.Add(1)
	return tunnel.Connect(a.stream.Conn())(address, func(other tunnel.UnpairedEndpoint, err error) {
		a.pendingConnects.Add(-1)
		if errors.Is(err, h2.ErrGoingAway) { // its streams are used up: it is to come anew
			a.stream.Conn().GoAway()
		}
		answered(other, err)
	})
}

// established is how many connections it has opened. One that it could not may have gone before that is told.
func (a *agent) established() int { return max(0, a.connCount()-int(a.pendingConnects.Load())) }

// recordDial notes how a dial of its has ended.
func (a *agent) recordDial(err error) {
	if err == nil {
		a.lastFailure.Store(nil)
		return
	}
	now := time.Now()
	a.lastFailure.Store(&now)
}

// isFailing says that it could not open, a moment ago, what it was last asked for.
func (a *agent) isFailing() bool {
	failed := a.lastFailure.Load()
	return failed != nil && time.Since(*failed) < failureHoldOff
}

// isSettled says that it is here to stay.
func (a *agent) isSettled() bool { return !a.byConnect || time.Since(a.admittedAt) > settleTime }

// Data implements h2.Receiver.
func (a *agent) Data(s *h2.Stream, b *h2.Buffer, end bool) {
	if b != nil && !a.admitted.Load() {
		b.Release()
		a.Reset(errors.New("an agent sends before it has been let in"))
		return
	}
	a.Packets.Data(s, b, end)
}

// disconnected has no more connections be opened by it, as it has gone, and ends those that have streams.
func (a *agent) disconnected(err error) {
	a.cancelAuth()
	a.gone.Store(true)
	a.conn.agents.remove(a)
	if a.stream.Close(wire.Trailer(wire.OK, "")); a.byConnect {
		a.stream.Conn().Close(err)
	}
}

// reject answers a stream with a status of gRPC.
func reject(s *h2.Stream, code int, why string) h2.Receiver {
	s.Header(wire.TrailersOnly(code, why), true)
	return h2.DiscardReceiver{}
}
