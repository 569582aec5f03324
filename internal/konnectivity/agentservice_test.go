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

// connectID is the ID that the agent has assigned to the connection.
const connectID = 1

func dialReq(address string, random int64) *packets.Packet {
	return &packets.Packet{Type: packets.PacketType_DIAL_REQ, Payload: &packets.Packet_DialRequest{
		DialRequest: &packets.DialRequest{Protocol: "tcp", Address: address, Random: random}}}
}

func dialRsp(random int64) *packets.Packet {
	return &packets.Packet{Type: packets.PacketType_DIAL_RSP, Payload: &packets.Packet_DialResponse{
		DialResponse: &packets.DialResponse{Random: random, ConnectID: connectID}}}
}

func data(text string) *packets.Packet {
	return &packets.Packet{Type: packets.PacketType_DATA,
		Payload: &packets.Packet_Data{Data: &packets.Data{ConnectID: connectID, Data: []byte(text)}}}
}

func closeReq() *packets.Packet {
	return &packets.Packet{Type: packets.PacketType_CLOSE_REQ,
		Payload: &packets.Packet_CloseRequest{CloseRequest: &packets.CloseRequest{ConnectID: connectID}}}
}

func closeRsp() *packets.Packet {
	return &packets.Packet{Type: packets.PacketType_CLOSE_RSP,
		Payload: &packets.Packet_CloseResponse{CloseResponse: &packets.CloseResponse{ConnectID: connectID}}}
}

// checkReceived receives a packet and compares it with want.
func checkReceived(t testing.TB, s interface{ RecvMsg(any) error }, want *packets.Packet) {
	t.Helper()
	p := &packets.Packet{}
	if err := s.RecvMsg(p); err != nil || !proto.Equal(p, want) {
		t.Errorf("got %v, error %v; want %v", p, err, want)
	}
}

// TestAgentOfAnotherServer checks a Trellis agent with a server that uses grpc-go. The agent must send the
// metadata that a reference agent sends, and open a connection. The test contains the names of the metadata as
// literals, so that it does not depend on constants of Trellis (KON-041, KON-050).
func TestAgentOfAnotherServer(t *testing.T) {
	p := newPKI(t)
	received, finished := make(chan metadata.MD, 1), make(chan struct{})
	connect := func(_ any, s grpc.ServerStream) error {
		defer close(finished)
		m, _ := metadata.FromIncomingContext(s.Context())
		received <- m
		err := s.SendHeader(metadata.Pairs("serverID", "other", "serverCount", "3"))
		for _, step := range []struct{ send, want *packets.Packet }{
			{dialReq("destination:1", 7), dialRsp(7)}, {data("hello"), data("hello")}, {closeReq(), closeRsp()},
		} {
			err = errors.Join(err, s.SendMsg(step.send))
			checkReceived(t, s, step.want)
		}
		return err
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(p.server)))
	g.RegisterService(&grpc.ServiceDesc{ServiceName: "AgentService", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Connect", Handler: connect, ServerStreams: true,
			ClientStreams: true}}}, nil)
	l := listen(t, "tcp", "127.0.0.1:0")
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	s, err := agent.Connect(t.Context(), l.Addr().String(), agent.Options{ID: "a", Identifiers: "host=b", TLS: p.agent,
		Metrics: agent.NewMetrics(), Token: func() (string, error) { return "secret", nil },
		Dial: echoDialer("destination:1")})
	must(t, err)
	t.Cleanup(s.Close)
	if s.ServerID() != "other" || s.ServerCount() != 3 || s.ServerIsTrellis() {
		t.Errorf("got server ID %q, count %d, Trellis %v", s.ServerID(), s.ServerCount(), s.ServerIsTrellis())
	}
	m := <-received
	for name, want := range map[string]string{"agentID": "a", "agentIdentifiers": "host=b",
		"Authorization": "Bearer secret"} {
		if got := m.Get(name); len(got) != 1 || got[0] != want {
			t.Errorf("metadata %s is %q, want %q", name, got, want)
		}
	}
	<-finished
}

// echoDialer returns a dial function that accepts one address. Its connections echo.
func echoDialer(address string) func(context.Context, string, string) (net.Conn, error) {
	return func(_ context.Context, network, requested string) (net.Conn, error) {
		if network != "tcp" || requested != address {
			return nil, errors.New("unexpected dial of " + network + " " + requested)
		}
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(far, far) }()
		return near, nil
	}
}

// TestServerOfAnotherAgent checks a Trellis server with an agent that uses grpc-go and sends the metadata of a
// reference agent. The server must accept the agent and send the metadata that a reference server sends (KON-041,
// KON-045, KON-050).
func TestServerOfAnotherAgent(t *testing.T) {
	p := newPKI(t)
	const token = "a.token.signed"
	trellis := server.New(server.Options{ID: "trellis", Count: 3, Strategies: []server.Strategy{server.DestHost},
		Logger: slog.New(slog.DiscardHandler),
		Authenticate: func(_ context.Context, got string) error {
			if got != token {
				return errors.New("not the token")
			}
			return nil
		}})
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	t.Cleanup(func() { trellis.Shutdown(canceled) })
	agents := tls.NewListener(listen(t, "tcp", "127.0.0.1:0"), p.server)
	frontends := listen(t, "unix", t.TempDir()+"/sock")
	go func() { _ = trellis.ServeAgents(agents) }()
	go func() { _ = trellis.ServeFrontends(frontends, server.ModeGRPC) }()

	conn, err := grpc.NewClient(agents.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(p.agent)))
	must(t, err)
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "agentID", "a", "agentIdentifiers", "host=destination",
		"Authorization", "Bearer "+token)
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/AgentService/Connect")
	must(t, err)
	header, err := s.Header()
	must(t, err)
	for name, want := range map[string]string{"serverID": "trellis", "serverCount": "3"} {
		if got := header.Get(name); len(got) != 1 || got[0] != want {
			t.Errorf("metadata %s is %q, want %q", name, got, want)
		}
	}
	waitFor(t, "the server has the agent", trellis.Ready)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		exchange(t, trellisClient(t, p, transport{server.ModeGRPC, true}, frontends.Addr().String()))
	}()
	request := &packets.Packet{}
	must(t, s.RecvMsg(request))
	random := request.GetDialRequest().GetRandom()
	if want := dialReq("destination:1", random); !proto.Equal(request, want) {
		t.Errorf("got %v, want %v", request, want)
	}
	must(t, s.SendMsg(dialRsp(random)))
	checkReceived(t, s, data("hello"))
	must(t, s.SendMsg(data("world")))
	checkReceived(t, s, closeReq())
	must(t, s.SendMsg(closeRsp()))
	<-ended
}

// exchange sends a request to a destination and checks the response.
func exchange(t testing.TB, dial dialer) {
	conn, err := dial(t.Context(), "destination:1")
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testTimeout))
	_, err = conn.Write([]byte("hello"))
	response := make([]byte, len("world"))
	if _, readErr := io.ReadFull(conn, response); err != nil || readErr != nil || string(response) != "world" {
		t.Errorf("response %q, write error %v, read error %v", response, err, readErr)
	}
}
