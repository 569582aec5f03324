package agent

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/admin"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

func getFrom(h http.Handler, path string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// TestHealth checks the health endpoints: the agent is always alive, and it is ready while it has a session. The
// responses equal those of the reference agent (KON-040, KON-052).
func TestHealth(t *testing.T) {
	const notReady = "[+]ping ok\n[-]server-connected failed: no servers connected\n"
	m := NewMetrics()
	s := newServers(&Config{}, m)
	h := admin.HealthHandler(m.registry, s.serveReady)
	for _, ready := range []bool{false, true} {
		if ready {
			s.sessions["one"] = &fakeSession{}
		}
		want := map[string]string{"/healthz": "ok", "/livez": "ok", "/readyz": "ok", "/ready": "ok",
			"/readyz?verbose": "[+]ping ok\n[+]server-connected ok\ncheck passed\n"}
		if !ready {
			want["/readyz"], want["/ready"], want["/readyz?verbose"] = notReady, notReady, notReady
		}
		for path, text := range want {
			status := http.StatusOK
			if text == notReady {
				status = http.StatusServiceUnavailable
			}
			if code, body := getFrom(h, path); code != status || body != text {
				t.Errorf("ready %t, %s: got %d %q, want %d %q", ready, path, code, body, status, text)
			}
		}
	}
}

// TestMetrics checks that the admin port and the health port serve the metrics, with the names that the reference
// agent uses (KON-052).
func TestMetrics(t *testing.T) {
	m := NewMetrics()
	m.ObserveDial(30*time.Millisecond, nil)
	m.ObserveDial(time.Second, errors.New("refused"))
	m.ObserveDial(time.Second, context.DeadlineExceeded)
	m.ObserveDial(time.Second, context.DeadlineExceeded)
	m.openConns.Add(1)
	m.onPacket(wire.DialReq, true)
	m.onPacket(wire.Data, false)
	m.servers.Set(2)
	m.knownServers.Set(3)
	m.onPacket(99, true)
	for _, h := range []http.Handler{admin.AdminHandler(m.registry, false, false),
		admin.HealthHandler(m.registry, newServers(&Config{}, m).serveReady)} {
		_, text := getFrom(h, "/metrics")
		for _, want := range []string{
			`dial_duration_seconds_bucket{le="0.1"} 1`,
			`dial_duration_seconds_count 1`,
			`endpoint_dial_failure_total{reason="timeout"} 2`,
			`endpoint_dial_failure_total{reason="unknown"} 1`,
			`open_endpoint_connections 1`,
			`open_server_connections 2`,
			`known_server_count 3`,
			`stream_packets_total{packet_type="DIAL_REQ",segment="to_agent"} 1`,
			`server_connection_failure_count{direction="from_server"} 0`,
			`stream_packets_total{packet_type="Unknown",segment="to_agent"} 1`,
			`stream_packets_total{packet_type="DATA",segment="from_agent"} 1`,
		} {
			if !strings.Contains(text, "\nkonnectivity_network_proxy_agent_"+want+"\n") {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
		// The tests of the reference implementation compare these texts.
		for _, help := range []string{
			"endpoint_dial_failure_total Number of failures dialing the remote endpoint, by reason (example: timeout).",
			"open_endpoint_connections Current number of open endpoint connections.",
		} {
			if !strings.Contains(text, "\n# HELP konnectivity_network_proxy_agent_"+help+"\n") {
				t.Errorf("no %q in\n%s", help, text)
			}
		}
		if !strings.Contains(text, "\ngo_goroutines ") {
			t.Error("no metric go_goroutines")
		}
	}
}

// TestProfiles checks that profiles are served only if profiling is enabled (KON-040).
func TestProfiles(t *testing.T) {
	for profiling, want := range map[bool]int{true: http.StatusOK, false: http.StatusNotFound} {
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/block", "/debug/pprof/symbol"} {
			if code, _ := getFrom(admin.AdminHandler(NewMetrics().registry, profiling, false), path); code != want {
				t.Errorf("profiling %t, %s: got %d, want %d", profiling, path, code, want)
			}
		}
	}
}
