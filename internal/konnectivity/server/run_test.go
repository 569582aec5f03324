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

// testConfig returns the Config of a server with free ports and a socket.
func testConfig(t *testing.T) Config {
	files := newAuthority(t).files()
	files.ClientCAFile = ""
	return Config{
		Options: Options{ID: "one", Count: 1, Strategies: []Strategy{Default}, KeepaliveTime: time.Minute,
			FrontendKeepaliveTime: time.Minute, Logger: slog.New(slog.DiscardHandler)},
		Mode: ModeGRPC, Socket: filepath.Join(t.TempDir(), "s"), AgentAddress: "127.0.0.1:0", AgentTLS: files,
		AdminAddress: "127.0.0.1:0", HealthAddress: "127.0.0.1:0", Profiling: true,
	}
}

// get returns the status and the body of a response.
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

// TestRun checks the responses of the ports without an agent. At shutdown, the ports are closed and the Lease
// is deleted (KON-025, KON-026, KON-027, KON-052).
func TestRun(t *testing.T) {
	c, client := testConfig(t), fake.NewClientset()
	c.Lease = &Lease{Client: client, Namespace: "kube-system", Labels: leaseLabels,
		Addresses: []string{"192.0.2.1", "[2001:db8::1]", "b.example:9"}}
	r, err := start(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx) }()
	const none = "no connection to any proxy agent"
	for path, want := range map[string]string{"/healthz": "200 ok", "/livez": "200 ok", "/readyz": "500 " + none,
		"/ready": "500 " + none} {
		if status, body := get(t, r.health, path); fmt.Sprint(status, " ", body) != want {
			t.Errorf("%s: got %d %s, want %s", path, status, body, want)
		}
	}
	if status, body := get(t, r.admin, "/metrics"); status != 200 ||
		!strings.Contains(body, "konnectivity_network_proxy_server_pending_backend_dials 0") {
		t.Errorf("/metrics: got %d %s", status, body)
	}
	if status, _ := get(t, r.admin, "/debug/pprof/"); status != 200 {
		t.Errorf("/debug/pprof/: got %d, want 200", status)
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
	waitFor(t, "the Lease exists", func() bool { return leases() == 1 })
	port := r.agents.Addr().(*net.TCPAddr).Port // KON-055: if --agent-port is 0, the Lease has the actual port
	if want := fmt.Sprintf("192.0.2.1:%d,[2001:db8::1]:%d,b.example:9", port, port); advertised != want {
		t.Errorf("the Lease has the addresses %s, want %s", advertised, want)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := leases(); n != 0 {
		t.Errorf("%d Leases are left, want none", n)
	}
	w := httptest.NewRecorder()
	if r.ready(w, nil); w.Code != 500 || w.Body.String() != "the server is shutting down" {
		t.Errorf("readiness during shutdown: got %d %s", w.Code, w.Body)
	}
	for network, addresses := range map[string][]string{"tcp": {r.agents.Addr().String(), r.admin.Addr, r.health.Addr},
		"unix": {r.frontends.Addr().String()}} {
		for _, address := range addresses {
			if c, err := net.Dial(network, address); err == nil {
				_ = c.Close()
				t.Errorf("%s still accepts connections", address)
			}
		}
	}
}

// TestReady checks that a server with an agent is ready. The texts equal those of the reference server (KON-052).
func TestReady(t *testing.T) {
	r := &running{server: New(Options{Strategies: []Strategy{Default}})}
	h := admin.HealthHandler(r.server.metrics.registry, r.ready)
	for _, want := range []string{"500 no connection to any proxy agent", "200 ok"} {
		for _, path := range []string{"/readyz", "/ready", "/readyz?verbose"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			if got := fmt.Sprint(w.Code, " ", w.Body); got != want {
				t.Errorf("%s: got %s, want %s", path, got, want)
			}
		}
		r.server.agents.add(testAgent(t, "a", 0, ""))
	}
}

// TestReadyByStrategy checks that a server is not ready if no strategy can select its agent (KON-034,
// KON-052).
func TestReadyByStrategy(t *testing.T) {
	const route, host = "default-route=true", "host=a.example"
	for _, c := range []struct {
		strategies, agent string
		ready             bool
	}{
		{"default", "", true}, {"default", route, true},
		{"defaultRoute", "", false}, {"defaultRoute", host, false}, {"defaultRoute", route, true},
		{"destHost", "", false}, {"destHost", route, false}, {"destHost", host, true},
		{"destHost,defaultRoute", "", false},
		{"destHost,defaultRoute", route, true}, {"destHost,default", "", true},
	} {
		strategies, err := ParseStrategies(c.strategies)
		if err != nil {
			t.Fatal(err)
		}
		s := New(Options{Strategies: strategies})
		a := testAgent(t, "a", 0, c.agent)
		if s.agents.add(a); s.Ready() != c.ready {
			t.Errorf("%s, agent with %q: ready is %t, want %t", c.strategies, c.agent, s.Ready(), c.ready)
		}
		if s.agents.remove(a); s.Ready() {
			t.Errorf("%s: ready without an agent", c.strategies)
		}
	}
}

// endRecorder is a Receiver that records the end of a stream.
type endRecorder chan error

func (e endRecorder) Header(*h2.Stream, []hpack.HeaderField, bool) {
	e <- errors.New("unexpected response")
}
func (e endRecorder) Data(*h2.Stream, *h2.Buffer, bool) {}
func (e endRecorder) Ended(_ *h2.Stream, err error)     { e <- err }

// TestRefusedDuringShutdown checks that a request of an API server during shutdown is refused in a way that allows
// a retry with another server (KON-053).
func TestRefusedDuringShutdown(t *testing.T) {
	s := New(Options{Strategies: []Strategy{Default}})
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	near, far := net.Pipe()
	client, server := h2.NewClient(near, h2.Options{}), h2.NewServer(far,
		h2.Options{Accept: func(stream *h2.Stream, header []hpack.HeaderField) h2.Receiver {
			s.Shutdown(canceled)
			return s.acceptFrontend(stream, header)
		}})
	for _, c := range []*h2.Conn{client, server} {
		go func() { _ = c.Run() }()
		defer c.Close(nil)
	}
	ended := make(endRecorder, 2)
	if _, err := client.Open(func(*h2.Stream) h2.Receiver { return ended },
		wire.Request(wire.ProxyMethod, "tunnel", false), false); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, h2.ErrRefused) {
		t.Errorf("the stream ends with %v, want %v", err, h2.ErrRefused)
	}
}

// TestMetrics checks that metrics have the names of the reference server, and that packets of unknown types are
// counted (KON-026).
func TestMetrics(t *testing.T) {
	s := New(Options{Strategies: []Strategy{Default}})
	m := s.metrics
	_ = s.dial("a:1", func(tunnel.UnpairedEndpoint, error) {})
	s.agents.add(testAgent(t, "a", 3, ""))
	s.agents.add(testAgent(t, "a", 0, ""))
	for _, gauge := range []prometheus.Gauge{m.frontendStreams, m.frontendStreams, m.httpConnections, m.httpConnections,
		m.httpConnections} {
		done, err := s.trackConnection(gauge)
		if err != nil {
			t.Fatal(err)
		}
		defer done()
	}
	done, _ := s.trackConnection(m.frontendStreams)
	done()
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

// TestPortInUse checks that the error of a port in use names the flag, and that the socket is closed
// (KON-025).
func TestPortInUse(t *testing.T) {
	c := testConfig(t)
	inUse, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inUse.Close()
	c.HealthAddress = inUse.Addr().String()
	if err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "--health-port") {
		t.Errorf("got error %v, want one that names --health-port", err)
	}
	if conn, err := net.Dial("unix", c.Socket); err == nil {
		_ = conn.Close()
		t.Error("the socket is still open")
	}
}
