package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2/hpack"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/trellis-k8s/trellis/internal/konnectivity/admin"
	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// configured is a server on free ports and a socket.
func configured(t *testing.T) Config {
	files := newAuthority(t).files()
	files.ClientCAFile = ""
	return Config{
		Options: Options{ID: "one", Count: 1, Strategies: []Strategy{Default}, KeepaliveTime: time.Minute, FrontendKeepaliveTime: time.Minute, Logger: slog.New(slog.DiscardHandler)},
		Mode:    ModeGRPC, Socket: filepath.Join(t.TempDir(), "s"), AgentAddress: "127.0.0.1:0", AgentTLS: files,
		AdminAddress: "127.0.0.1:0", HealthAddress: "127.0.0.1:0", Profiling: true,
	}
}

// get is a status and a body.
func get(t *testing.T, s *http.Server, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + s.Addr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// KON-025, KON-026, KON-027, KON-052: what the ports serve while no agent is connected; and all of it ends, the Lease with it.
func TestRun(t *testing.T) {
	c, client := configured(t), fake.NewClientset()
	c.Lease = &Lease{Client: client, Namespace: "kube-system", Labels: leaseLabels, Addresses: []string{"192.0.2.1", "[2001:db8::1]", "b.example:9"}}
	r, err := start(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx) }()
	const none = "no connection to any proxy agent"
	for path, want := range map[string]string{"/healthz": "200 ok", "/livez": "200 ok", "/readyz": "500 " + none, "/ready": "500 " + none} {
		if status, body := get(t, r.health, path); fmt.Sprint(status, " ", body) != want {
			t.Errorf("%s: %d %s, want %s", path, status, body, want)
		}
	}
	if status, body := get(t, r.admin, "/metrics"); status != 200 || !strings.Contains(body, "konnectivity_network_proxy_server_pending_backend_dials 0") {
		t.Errorf("/metrics: %d %s", status, body)
	}
	if status, _ := get(t, r.admin, "/debug/pprof/"); status != 200 {
		t.Errorf("/debug/pprof/: %d", status)
	}
	var advertised string
	leases := func() int {
		all, err := client.CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all.Items {
			advertised = l.Annotations[wire.AddressAnnotation]
		}
		return len(all.Items)
	}
	eventually(t, "a Lease", func() bool { return leases() == 1 })
	port := r.agents.Addr().(*net.TCPAddr).Port // KON-055: agents dial what it has, where --agent-port is 0
	if want := fmt.Sprintf("192.0.2.1:%d,[2001:db8::1]:%d,b.example:9", port, port); advertised != want {
		t.Errorf("agents are told %s, want %s", advertised, want)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := leases(); n != 0 {
		t.Errorf("%d Leases are left", n)
	}
	w := httptest.NewRecorder()
	if r.ready(w, nil); w.Code != 500 || w.Body.String() != "the server is shutting down" {
		t.Errorf("ready at the end: %d %s", w.Code, w.Body)
	}
	for network, addresses := range map[string][]string{"tcp": {r.agents.Addr().String(), r.admin.Addr, r.health.Addr}, "unix": {r.frontends.Addr().String()}} {
		for _, at := range addresses {
			if c, err := net.Dial(network, at); err == nil {
				_ = c.Close()
				t.Errorf("something still listens at %s", at)
			}
		}
	}
}

// KON-052: ready is who has an agent; the reference's texts.
func TestReady(t *testing.T) {
	r := &running{server: New(Options{Strategies: []Strategy{Default}})}
	h := admin.HealthHandler(r.server.metrics.registry, r.ready)
	for _, want := range []string{"500 no connection to any proxy agent", "200 ok"} {
		for _, path := range []string{"/readyz", "/ready", "/readyz?verbose"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			if got := fmt.Sprint(w.Code, " ", w.Body); got != want {
				t.Errorf("%s: %s, want %s", path, got, want)
			}
		}
		r.server.agents.add(someAgent(t, "a", 0, ""))
	}
}

// KON-034, KON-052: an agent that no strategy can choose makes nobody ready, as nothing can be dialled.
func TestReadyByStrategy(t *testing.T) {
	const route, host = "default-route=true", "host=a.example"
	for _, c := range []struct {
		strategies, agent string
		ready             bool
	}{
		{"default", "", true}, {"default", route, true}, {"defaultRoute", "", false}, {"defaultRoute", host, false}, {"defaultRoute", route, true},
		{"destHost", "", false}, {"destHost", route, false}, {"destHost", host, true}, {"destHost,defaultRoute", "", false},
		{"destHost,defaultRoute", route, true}, {"destHost,default", "", true},
	} {
		strategies, err := ParseStrategies(c.strategies)
		if err != nil {
			t.Fatal(err)
		}
		s := New(Options{Strategies: strategies})
		a := someAgent(t, "a", 0, c.agent)
		if s.agents.add(a); s.Ready() != c.ready {
			t.Errorf("%s, an agent with %q: ready is %t", c.strategies, c.agent, s.Ready())
		}
		if s.agents.remove(a); s.Ready() {
			t.Errorf("%s: ready without an agent", c.strategies)
		}
	}
}

// endings is told how a stream ends.
type endings chan error

func (e endings) Header(*h2.Stream, []hpack.HeaderField, bool) {
	e <- errors.New("it has been answered")
}
func (e endings) Data(*h2.Stream, *h2.Buffer, bool) {}
func (e endings) Ended(_ *h2.Stream, err error)     { e <- err }

// KON-053: what an API server asks for in the moment that the server begins to leave is refused so that it knows to ask another.
func TestRefusedWhileLeaving(t *testing.T) {
	s := New(Options{Strategies: []Strategy{Default}})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	near, far := net.Pipe()
	asks, answers := h2.NewClient(near, h2.Options{}), h2.NewServer(far, h2.Options{Accept: func(stream *h2.Stream, header []hpack.HeaderField) h2.Receiver {
		s.Shutdown(over)
		return s.acceptFrontend(stream, header)
	}})
	for _, c := range []*h2.Conn{asks, answers} {
		go func() { _ = c.Run() }()
		defer c.Close(nil)
	}
	ended := make(endings, 2)
	if _, err := asks.Open(func(*h2.Stream) h2.Receiver { return ended }, wire.Request(wire.ProxyMethod, "tunnel", false), false); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, h2.ErrRefused) {
		t.Errorf("%v, want %v", err, h2.ErrRefused)
	}
}

// KON-026: counters have the reference's names, and a packet of no known type is counted as well.
func TestMetrics(t *testing.T) {
	s := New(Options{Strategies: []Strategy{Default}})
	m := s.metrics
	_ = s.dial("a:1", func(tunnel.UnpairedEndpoint, error) {})
	s.agents.add(someAgent(t, "a", 3, ""))
	s.agents.add(someAgent(t, "a", 0, ""))
	for _, among := range []prometheus.Gauge{m.frontendStreams, m.frontendStreams, m.httpConnections, m.httpConnections, m.httpConnections} {
		leave, err := s.trackConnection(among)
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
	}
	leave, _ := s.trackConnection(m.frontendStreams)
	leave()
	m.stalled.Inc()
	m.onFrontendPacket(wire.DialReq, true)
	m.onAgentPacket(wire.DialCls, false)
	m.onAgentPacket(wire.Drain, true)
	m.onAgentPacket(99, false)
	m.onAgentPacket(255, false)
	w := httptest.NewRecorder()
	admin.AdminHandler(m.registry, false, false).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`dial_failure_count{reason="no_agent"} 1`,
		`established_connections 3`,
		`pending_backend_dials 0`,
		`stalled_connections_total 1`,
		`ready_backend_connections 1`,
		`grpc_connections{service_method="Connect"} 2`,
		`grpc_connections{service_method="Proxy"} 2`,
		`http_connections 3`,
		`stream_packets_total{packet_type="DIAL_REQ",segment="from_client"} 1`,
		`stream_packets_total{packet_type="DIAL_CLS",segment="to_agent"} 1`,
		`stream_packets_total{packet_type="DRAIN",segment="from_agent"} 1`,
		`stream_packets_total{packet_type="Unknown",segment="to_agent"} 2`,
		`stream_packets_total{packet_type="DATA",segment="to_client"} 0`,
	} {
		if !strings.Contains(w.Body.String(), "\nkonnectivity_network_proxy_server_"+want+"\n") {
			t.Errorf("no %s in\n%s", want, w.Body)
		}
	}
}

// KON-025: a port that is taken is an error that names the flag, and leaves nothing behind.
func TestPortIsTaken(t *testing.T) {
	c := configured(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c.HealthAddress = taken.Addr().String()
	if err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "--health-port") {
		t.Errorf("got %v", err)
	}
	if conn, err := net.Dial("unix", c.Socket); err == nil {
		_ = conn.Close()
		t.Error("the socket is still open")
	}
}
