package konnectivity_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	packets "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"github.com/trellis-k8s/trellis/internal/konnectivity/agent"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

// connectID is the number of a connection that an agent has given it.
const connectID = 1

// The packets of a connection, as the reference's types have them.
func dialReq(address string, random int64) *packets.Packet {
	return &packets.Packet{Type: packets.PacketType_DIAL_REQ, Payload: &packets.Packet_DialRequest{
		DialRequest: &packets.DialRequest{Protocol: "tcp", Address: address, Random: random}}}
}

func dialRsp(random int64) *packets.Packet {
	return &packets.Packet{Type: packets.PacketType_DIAL_RSP, Payload: &packets.Packet_DialResponse{
		DialResponse: &packets.DialResponse{Random: random, ConnectID: connectID}}}
}

func data(text string) *packets.Packet {
	return &packets.Packet{Type: packets.PacketType_DATA, Payload: &packets.Packet_Data{Data: &packets.Data{ConnectID: connectID, Data: []byte(text)}}}
}

func closeReq() *packets.Packet {
	return &packets.Packet{Type: packets.PacketType_CLOSE_REQ, Payload: &packets.Packet_CloseRequest{CloseRequest: &packets.CloseRequest{ConnectID: connectID}}}
}

func closeRsp() *packets.Packet {
	return &packets.Packet{Type: packets.PacketType_CLOSE_RSP, Payload: &packets.Packet_CloseResponse{CloseResponse: &packets.CloseResponse{ConnectID: connectID}}}
}

// gets receives a packet of a stream, and says whether it is the one that is wanted.
func gets(t testing.TB, s interface{ RecvMsg(any) error }, want *packets.Packet) {
	t.Helper()
	p := &packets.Packet{}
	if err := s.RecvMsg(p); err != nil || !proto.Equal(p, want) {
		t.Errorf("%v, %v; want %v", p, err, want)
	}
}

// KON-041 KON-050: a server of AgentService that is made by gRPC's own library is told by our agent what the reference's agent tells it, and
// has it open a connection. What is told of whom has the names here that it has in the reference.
func TestAgentOfAnotherServer(t *testing.T) {
	p := newPKI(t)
	said, over := make(chan metadata.MD, 1), make(chan struct{})
	connect := func(_ any, s grpc.ServerStream) error {
		defer close(over)
		m, _ := metadata.FromIncomingContext(s.Context())
		said <- m
		err := s.SendHeader(metadata.Pairs("serverID", "other", "serverCount", "3"))
		for _, step := range []struct{ ask, want *packets.Packet }{
			{dialReq("destination:1", 7), dialRsp(7)}, {data("hello"), data("hello")}, {closeReq(), closeRsp()},
		} {
			err = errors.Join(err, s.SendMsg(step.ask))
			gets(t, s, step.want)
		}
		return err
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(p.server)))
	g.RegisterService(&grpc.ServiceDesc{ServiceName: "AgentService", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Connect", Handler: connect, ServerStreams: true, ClientStreams: true}}}, nil)
	l := listen(t, "tcp", "127.0.0.1:0")
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	s, err := agent.Connect(t.Context(), l.Addr().String(), agent.Options{ID: "a", Identifiers: "host=b", TLS: p.agent, Metrics: agent.NewMetrics(),
		Token: func() (string, error) { return "secret", nil }, Dial: echoAt("destination:1")})
	must(t, err)
	t.Cleanup(s.Close)
	if s.ServerID() != "other" || s.ServerCount() != 3 || s.ServerIsTrellis() {
		t.Errorf("the server is taken for %q of %d, Trellis': %v", s.ServerID(), s.ServerCount(), s.ServerIsTrellis())
	}
	m := <-said
	for name, want := range map[string]string{"agentID": "a", "agentIdentifiers": "host=b", "Authorization": "Bearer secret"} {
		if got := m.Get(name); len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	<-over
}

// echoAt dials one address, at which all that is sent comes back.
func echoAt(address string) func(context.Context, string, string) (net.Conn, error) {
	return func(_ context.Context, network, asked string) (net.Conn, error) {
		if network != "tcp" || asked != address {
			return nil, errors.New("asked for " + network + " " + asked)
		}
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(far, far) }()
		return near, nil
	}
}

// KON-041 KON-045 KON-050: an agent that is made by gRPC's own library, and says what the reference's does, is one to our server, which tells
// it of itself what the reference's does.
func TestServerOfAnotherAgent(t *testing.T) {
	p := newPKI(t)
	const token = "a.token.signed"
	ours := server.New(server.Options{ID: "ours", Count: 3, Strategies: []server.Strategy{server.DestHost}, Logger: slog.New(slog.DiscardHandler),
		Authenticate: func(_ context.Context, said string) error {
			if said != token {
				return errors.New("not the token")
			}
			return nil
		}})
	over, end := context.WithCancel(context.Background())
	end()
	t.Cleanup(func() { ours.Shutdown(over) })
	agents, fronts := tls.NewListener(listen(t, "tcp", "127.0.0.1:0"), p.server), listen(t, "unix", t.TempDir()+"/front")
	go func() { _ = ours.ServeAgents(agents) }()
	go func() { _ = ours.ServeFrontends(fronts, server.ModeGRPC) }()

	conn, err := grpc.NewClient(agents.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(p.agent)))
	must(t, err)
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "agentID", "a", "agentIdentifiers", "host=destination", "Authorization", "Bearer "+token)
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/AgentService/Connect")
	must(t, err)
	said, err := s.Header()
	must(t, err)
	for name, want := range map[string]string{"serverID": "ours", "serverCount": "3"} {
		if got := said.Get(name); len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	until(t, "the server has the agent", ours.Ready)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		asks(t, ourFront(t, p, transport{server.ModeGRPC, true}, fronts.Addr().String()))
	}()
	request := &packets.Packet{}
	must(t, s.RecvMsg(request))
	random := request.GetDialRequest().GetRandom()
	if want := dialReq("destination:1", random); !proto.Equal(request, want) {
		t.Errorf("%v, want %v", request, want)
	}
	must(t, s.SendMsg(dialRsp(random)))
	gets(t, s, data("hello"))
	must(t, s.SendMsg(data("there")))
	gets(t, s, closeReq())
	must(t, s.SendMsg(closeRsp()))
	<-ended
}

// asks says hello to a destination, and hears an answer.
func asks(t testing.TB, dial dialer) {
	conn, err := dial(t.Context(), "destination:1")
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err = conn.Write([]byte("hello"))
	answer := make([]byte, len("there"))
	if _, unread := io.ReadFull(conn, answer); err != nil || unread != nil || string(answer) != "there" {
		t.Errorf("%q, %v, %v", answer, err, unread)
	}
}
