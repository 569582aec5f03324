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
	// failingTime is how long an agent is passed over after a dial that has failed.
	failingTime = 5 * time.Second
	// settleTime is how long it takes an agent at most to close a connection to a server that it has met already, as it does behind a
	// load balancer.
	settleTime       = time.Second
	agentStreams     = 4                // of a connection, and
	strangersStreams = 8                // in all, before one of them is an agent's,
	strangersTime    = 30 * time.Second // which one has to be by then
)

// jwt is what tokens of ServiceAccounts look like (RFC 7515, 7.1).
var jwt = regexp.MustCompile(`^[\w-]+\.[\w-]+\.[\w-]+$`)

// agentID is what agents may be called, who write it into the log: they have names of hosts, or UUIDs.
var agentID = regexp.MustCompile(`^[ -~]{1,253}$`)

// errNoToken may be told to strangers.
var errNoToken = errors.New("no token of a ServiceAccount: the agent needs --service-account-token-path")

var errNobody = errors.New("no agent has said who it is")

// ServeAgents serves agents until the listener is closed.
func (s *Server) ServeAgents(l net.Listener) error {
	refused := newRefusals(s.options.Logger, "a connection to the port for agents was closed",
		"a TLS handshake at the port for agents failed; have they a certificate of --cluster-ca-cert, if that is given, and do they trust --cluster-cert?")
	return s.listen(l, func(conn net.Conn) {
		p := &peer{Server: s, from: conn.RemoteAddr(), refused: refused}
		c := h2.NewServer(conn, h2.Options{MaxStreams: agentStreams, Accept: p.accept})
		p.known = s.nobody.enter(c.Close)
		go func() {
			defer p.known()
			stranger := time.AfterFunc(strangersTime, func() {
				if !p.let.Load() {
					c.Close(errNobody)
				}
			})
			defer stranger.Stop()
			refused.log(conn, s.run(c, false, s.options.KeepaliveTime))
		}()
	})
}

// peer is the other end of a connection to the port for agents.
type peer struct {
	*Server
	from    net.Addr
	refused *refusals
	streams int
	let     atomic.Bool // in, as an agent
	known   func()      // says so to strangers
}

// agent is the stream of an agent that has connected, and what is opened by it.
type agent struct {
	tunnel.Packets
	peer        *peer
	stream      *h2.Stream
	id          string
	identifiers identifiers
	came        time.Time          // was let in; it may be read once it is among the agents
	connects    bool               // has a stream for each connection
	open        func() int         // how many connections it has, those that it has not answered for included if it connects
	unanswered  atomic.Int64       // of these
	end         context.CancelFunc // of its authentication
	welcome     atomic.Bool
	gone        atomic.Bool
	failed      atomic.Pointer[time.Time] // when its last dial did; nil: it did not
}

// accept takes a stream of an agent.
func (p *peer) accept(stream *h2.Stream, header []hpack.HeaderField) h2.Receiver {
	if p.streams++; p.streams > strangersStreams && !p.let.Load() {
		stream.Conn().Close(errors.New("too many streams of nobody that is known"))
		return nil
	}
	if path, _ := wire.Field(header, ":path"); path != wire.Connect {
		return refuse(stream, wire.Unimplemented, "this port of the tunnel server serves "+wire.Connect+" alone")
	}
	id, _ := wire.Field(header, wire.AgentID)
	if !agentID.MatchString(id) {
		return refuse(stream, wire.Unknown, "an agent says who it is by "+wire.AgentID+", in at most 253 printable characters of ASCII")
	}
	said, _ := wire.Field(header, wire.AgentIdentifiers)
	identifiers, err := parseIdentifiers(said)
	if err != nil {
		return refuse(stream, wire.Unknown, err.Error())
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &agent{peer: p, stream: stream, id: id, identifiers: identifiers, end: cancel}
	a.Shared, a.Saw, a.Stalled = true, p.metrics.sawAgents, p.metrics.stalled.Inc
	a.Over, a.open = a.leave, a.Open
	a.Bind(stream)
	by, _ := wire.Field(header, wire.Tunnel)
	if a.connects = by == wire.ByConnect && stream.Conn().MayTunnel(); a.connects {
		a.open = func() int { return stream.Conn().Streams() - 1 }
	}
	token, _ := wire.Field(header, wire.Authorization)
	go a.admit(ctx, token)
	return a
}

// admit has the agent open connections, if it may.
func (a *agent) admit(ctx context.Context, authorization string) {
	defer a.end()
	o := a.peer.options
	if err := a.identify(ctx, authorization); err != nil {
		warn := func() { o.Logger.Warn("an agent was refused", "agent", a.id, "from", a.peer.from, "error", err) }
		told := "the agent's token is not accepted: the log of the tunnel server says why"
		switch {
		case errors.Is(err, errNoToken):
			told = err.Error()
			fallthrough
		case errors.Is(err, errNoTurn), ctx.Err() != nil: // strangers may have as many of these as they like
			a.peer.refused.often.Do(warn)
		default: // operators look for it
			warn()
		}
		a.stream.Header(wire.Refusal(wire.Unauthenticated, told), true)
		a.stream.Close(nil)
		return
	}
	metadata := []string{wire.ServerID, o.ID, wire.ServerCount, strconv.Itoa(o.Count)}
	if a.connects {
		metadata = append(metadata, wire.Tunnel, wire.ByConnect)
	}
	a.welcome.Store(true)
	a.peer.let.Store(true)
	a.peer.known()
	a.stream.Header(wire.Response(metadata...), false)
	a.came = time.Now() // it closes the connection, if it does, by what it has just been told
	a.peer.agents.add(a)
	if a.gone.Load() { // meanwhile
		a.peer.agents.remove(a)
	}
}

// identify has its token reviewed at its turn.
func (a *agent) identify(ctx context.Context, authorization string) error {
	authenticate := a.peer.options.Authenticate
	if authenticate == nil {
		return nil
	}
	token, bearer := strings.CutPrefix(authorization, "Bearer ")
	if !bearer || !jwt.MatchString(token) {
		return errNoToken
	}
	host, _, _ := net.SplitHostPort(a.peer.from.String())
	return a.peer.turns.review(ctx, a.id, host, func(ctx context.Context) error { return authenticate(ctx, token) })
}

// dial has it open a connection.
func (a *agent) dial(address string, answered func(tunnel.Joint, error)) (cancel func()) {
	if !a.connects {
		return a.Dial(address, answered)
	}
	a.unanswered.Add(1)
	return tunnel.Connect(a.stream.Conn())(address, func(other tunnel.Joint, err error) {
		a.unanswered.Add(-1)
		if errors.Is(err, h2.ErrGoingAway) { // its streams are used up: it is to come anew
			a.stream.Conn().GoAway()
		}
		answered(other, err)
	})
}

// established is how many connections it has opened. One that it could not may have gone before that is told.
func (a *agent) established() int { return max(0, a.open()-int(a.unanswered.Load())) }

// answered notes how a dial of its has ended.
func (a *agent) answered(err error) {
	if err == nil {
		a.failed.Store(nil)
		return
	}
	now := time.Now()
	a.failed.Store(&now)
}

// failing says that it could not open, a moment ago, what it was last asked for.
func (a *agent) failing() bool {
	failed := a.failed.Load()
	return failed != nil && time.Since(*failed) < failingTime
}

// settled says that it is here to stay.
func (a *agent) settled() bool { return !a.connects || time.Since(a.came) > settleTime }

// Data implements h2.Receiver.
func (a *agent) Data(s *h2.Stream, b *h2.Buffer, end bool) {
	if b != nil && !a.welcome.Load() {
		b.Release()
		a.Reset(errors.New("an agent sends before it has been let in"))
		return
	}
	a.Packets.Data(s, b, end)
}

// leave has no more connections be opened by it, as it has gone, and ends those that have streams.
func (a *agent) leave(err error) {
	a.end()
	a.gone.Store(true)
	a.peer.agents.remove(a)
	if a.stream.Close(wire.Trailer(wire.OK, "")); a.connects {
		a.stream.Conn().Close(err)
	}
}

// refuse answers a stream with a status of gRPC.
func refuse(s *h2.Stream, code int, why string) h2.Receiver {
	s.Header(wire.Refusal(code, why), true)
	return h2.Unserved{}
}
