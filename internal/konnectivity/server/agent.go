package server

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

const (
	// failingTime is how long an agent is passed over after a dial that has failed.
	failingTime      = 5 * time.Second
	agentStreams     = 4 // of a connection, and
	strangersStreams = 8 // in all, before one of them is an agent's
	authenticateTime = 30 * time.Second
)

// ServeAgents serves agents until the listener is closed.
func (s *Server) ServeAgents(l net.Listener) error {
	return s.listen(l, func(conn net.Conn) {
		var let atomic.Bool
		streams := 0
		c := h2.NewServer(conn, h2.Options{MaxStreams: agentStreams, Accept: func(stream *h2.Stream, header []hpack.HeaderField) h2.Receiver {
			if streams++; streams > strangersStreams && !let.Load() {
				stream.Conn().Close(errors.New("too many streams of nobody that is known"))
				return nil
			}
			return s.accept(stream, header, &let)
		}})
		stranger := time.AfterFunc(2*authenticateTime, func() {
			if !let.Load() {
				c.Close(errors.New("no agent has said who it is"))
			}
		})
		defer stranger.Stop()
		if err := s.run(c, s.options.KeepaliveTime); errors.Is(err, h2.ErrNotHTTP2) {
			s.options.Logger.Warn("a connection to the port for agents was closed", "from", conn.RemoteAddr(), "error", err)
		}
	})
}

// agent is the stream of an agent that has connected, and what is opened by it.
type agent struct {
	tunnel.Packets
	server      *Server
	stream      *h2.Stream
	id          string
	identifiers Identifiers
	connects    bool               // has a stream for each connection
	end         context.CancelFunc // of its authentication
	welcome     atomic.Bool
	let         *atomic.Bool // somebody on this connection
	gone        atomic.Bool
	failed      atomic.Int64 // when its last dial did, in nanoseconds; 0: it did not
}

// accept takes a stream of an agent.
func (s *Server) accept(stream *h2.Stream, header []hpack.HeaderField, let *atomic.Bool) h2.Receiver {
	ctx, cancel := context.WithTimeout(context.Background(), authenticateTime)
	a := &agent{server: s, stream: stream, end: cancel, let: let}
	a.Shared, a.Saw, a.Stalled = true, s.seen(FromAgent, ToAgent), s.options.Metrics.Stalled
	a.Over = func() { a.over(stream, nil) } // it may be its packets that are given up
	a.Bind(stream)
	refuse := func(code int, why string) h2.Receiver {
		cancel()
		stream.Header(wire.Refusal(code, why), true)
		return a
	}
	if path, _ := wire.Field(header, ":path"); path != wire.Connect {
		return refuse(wire.Unimplemented, "this port of the tunnel server serves "+wire.Connect+" alone")
	}
	id, _ := wire.Field(header, wire.AgentID)
	if id == "" {
		return refuse(wire.Unknown, "an agent says who it is by "+wire.AgentID)
	}
	a.id = id
	identifiers, _ := wire.Field(header, wire.AgentIdentifiers)
	var err error
	if a.identifiers, err = ParseIdentifiers(identifiers); err != nil {
		return refuse(wire.Unknown, err.Error())
	}
	by, _ := wire.Field(header, wire.Tunnel)
	a.connects = by == wire.ByConnect && stream.Conn().MayTunnel()
	token, _ := wire.Field(header, wire.Authorization)
	go a.admit(ctx, token)
	return a
}

// admit has the agent open connections, if it may.
func (a *agent) admit(ctx context.Context, authorization string) {
	defer a.end()
	o := a.server.options
	if o.Authenticate != nil {
		token, bearer := strings.CutPrefix(authorization, "Bearer ")
		err := errors.New("an agent says who it is by a Bearer token")
		if bearer {
			err = o.Authenticate(ctx, token)
		}
		if err != nil {
			o.Logger.Warn("an agent was refused", "agent", a.id, "error", err)
			a.stream.Header(wire.Refusal(wire.Unauthenticated, err.Error()), true)
			a.stream.Close(nil)
			return
		}
	}
	metadata := []string{wire.ServerID, o.ID, wire.ServerCount, strconv.Itoa(o.Count)}
	if a.connects {
		metadata = append(metadata, wire.Tunnel, wire.ByConnect)
	}
	a.welcome.Store(true)
	a.let.Store(true)
	a.stream.Header(wire.Response(metadata...), false)
	a.server.agents.Add(a)
	if a.gone.Load() { // meanwhile
		a.server.agents.Remove(a)
	}
}

// dial has it open a connection.
func (a *agent) dial(address string, answered func(tunnel.Joint, error)) (cancel func()) {
	if a.connects {
		return tunnel.Connect(a.stream.Conn())(address, answered)
	}
	return a.Dial(address, answered)
}

// ID implements Agent.
func (a *agent) ID() string { return a.id }

// Identifiers implements Agent.
func (a *agent) Identifiers() Identifiers { return a.identifiers }

// Failing implements Agent.
func (a *agent) Failing() bool { return time.Since(time.Unix(0, a.failed.Load())) < failingTime }

// Open implements Agent: how many connections it has.
func (a *agent) Open() int {
	if a.connects {
		return a.stream.Conn().Streams() - 1
	}
	return a.Packets.Open()
}

// Header implements h2.Receiver: there is only the end.
func (a *agent) Header(s *h2.Stream, _ []hpack.HeaderField, end bool) {
	if end {
		a.over(s, nil)
	}
}

// Data implements h2.Receiver.
func (a *agent) Data(s *h2.Stream, b *h2.Buffer, end bool) {
	if b != nil {
		if !a.welcome.Load() {
			b.Release()
			s.Reset(http2.ErrCodeProtocol)
			a.over(s, errors.New("an agent sends before it has been let in"))
			return
		}
		if err := a.Read(b); err != nil {
			a.Reset(err)
			end = true
		}
	}
	if end {
		a.over(s, nil)
	}
}

// Ended implements h2.Receiver.
func (a *agent) Ended(s *h2.Stream, err error) { a.over(s, err) }

// over ends all connections by it.
func (a *agent) over(s *h2.Stream, err error) {
	a.end()
	a.gone.Store(true)
	a.server.agents.Remove(a)
	if err == nil {
		err = errors.New("the agent has left")
	}
	a.Close(err)
	if s.Close(wire.Trailer(wire.OK, "")); a.connects {
		s.Conn().Close(err)
	}
}
