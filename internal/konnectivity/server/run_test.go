package server

import (
	"context"
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

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
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
func get(t *testing.T, l net.Listener, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + l.Addr().String() + path)
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
	c.Lease = &Lease{Client: client, Namespace: "kube-system", Labels: leaseLabels}
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
	leases := func() int {
		all, err := client.CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(all.Items)
	}
	eventually(t, "a Lease", func() bool { return leases() == 1 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := leases(); n != 0 {
		t.Errorf("%d Leases are left", n)
	}
	if why := r.notReady(); why != "the server is shutting down" {
		t.Errorf("not ready at the end as %q", why)
	}
	for _, l := range []net.Listener{r.agents, r.fronts, r.admin, r.health} {
		if c, err := net.Dial(l.Addr().Network(), l.Addr().String()); err == nil {
			_ = c.Close()
			t.Errorf("something still listens at %s", l.Addr())
		}
	}
}

// KON-052: ready is who has an agent; the reference's texts.
func TestReady(t *testing.T) {
	for _, why := range []string{"", "no connection to any proxy agent"} {
		h := newHealth(NewMetrics(), func() string { return why }).Handler
		for _, path := range []string{"/readyz", "/ready", "/readyz?verbose"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			want, body := 200, "ok"
			if why != "" {
				want, body = 500, why
			}
			if w.Code != want || w.Body.String() != body {
				t.Errorf("%s: %d %s, want %d %s", path, w.Code, w.Body, want, body)
			}
		}
	}
}

// KON-026: profiles are served where --enable-profiling says so.
func TestNoProfiles(t *testing.T) {
	w := httptest.NewRecorder()
	newAdmin(NewMetrics(), false, false).Handler.ServeHTTP(w, httptest.NewRequest("GET", "/debug/pprof/", nil))
	if w.Code != 404 {
		t.Errorf("got %d, want 404", w.Code)
	}
}

// KON-026: counters have the reference's names, and a packet of no known type is counted as well.
func TestMetrics(t *testing.T) {
	m := NewMetrics()
	m.Dialing()
	m.Dialing()
	m.DialDone()
	m.DialFailed(NoAgent)
	m.Opened(time.Second)
	m.Opened(time.Second)
	m.Established(func() int { return 1 })
	m.Stalled()
	m.Packet(FromFront, 0)
	m.Packet(ToAgent, 5)
	m.Packet(ToAgent, 99)
	m.Packet(ToAgent, -1)
	const want = `
# HELP konnectivity_network_proxy_server_dial_failure_count Number of failures of dials, of which one may have several.
# TYPE konnectivity_network_proxy_server_dial_failure_count counter
konnectivity_network_proxy_server_dial_failure_count{reason="no_agent"} 1
# HELP konnectivity_network_proxy_server_established_connections Number of tunnelled connections that are open.
# TYPE konnectivity_network_proxy_server_established_connections gauge
konnectivity_network_proxy_server_established_connections 1
# HELP konnectivity_network_proxy_server_pending_backend_dials Number of dials that agents have not answered yet.
# TYPE konnectivity_network_proxy_server_pending_backend_dials gauge
konnectivity_network_proxy_server_pending_backend_dials 1
# HELP konnectivity_network_proxy_server_stalled_connections_total Number of tunnelled connections that were closed because an end took nothing.
# TYPE konnectivity_network_proxy_server_stalled_connections_total counter
konnectivity_network_proxy_server_stalled_connections_total 1
`
	const p = "konnectivity_network_proxy_server_"
	if err := testutil.GatherAndCompare(m.registry, strings.NewReader(want), p+"dial_failure_count", p+"established_connections", p+"pending_backend_dials", p+"stalled_connections_total"); err != nil {
		t.Error(err)
	}
	for labels, want := range map[[2]string]float64{{"from_client", "DIAL_REQ"}: 1, {"to_agent", "DIAL_CLS"}: 1, {"to_agent", "Unknown"}: 2, {"to_client", "DATA"}: 0} {
		if got := testutil.ToFloat64(m.streamPackets.WithLabelValues(labels[:]...)); got != want {
			t.Errorf("packets %v: %v, want %v", labels, got, want)
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
