package apiserver_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/pki"
)

// echo upgrades the connection of a request to protocol and sends back what it reads.
func echo(w http.ResponseWriter, protocol string) {
	conn, in, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol)
	_, _ = io.Copy(conn, in)
}

// upgradeEnv is a server with an aggregated API. Requests have a deadline of two seconds. The user jane has all
// permissions and is subject to flow control.
type upgradeEnv struct {
	*testing.T
	*apiserver.Server
	client *http.Client
	tls    *tls.Config
}

func newUpgradeEnv(t *testing.T) *upgradeEnv {
	dir := t.TempDir()
	keys, err := pki.Ensure(filepath.Join(dir, "pki"), nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	u := &upgradeEnv{T: t, Server: start(t, apiserver.Config{DataDir: dir, RequestTimeout: 2 * time.Second,
		LocalServices: []string{"default/server"}})}
	u.client = client(t, u.Server)
	if u.tls, err = rest.TLSConfigFor(u.ClientConfig()); err != nil {
		t.Fatal(err)
	}
	newAggregatedServer(t, "a.example.com", keys.ProxyCAPEM, "X-Remote-User").register(t, u.Server)
	resp, err := u.client.Post(u.URL()+"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "application/json",
		strings.NewReader(
			`{"metadata":{"name":"jane"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"jane"}]}`))
	body(t, resp, err, http.StatusCreated)
	return u
}

// send sends a request of jane to the aggregated API on a new connection.
func (u *upgradeEnv) send(method, then, headers string) (net.Conn, *bufio.Reader) {
	u.Helper()
	conn, err := tls.Dial("tcp", u.Address(), u.tls.Clone())
	if err != nil {
		u.Fatal(err)
	}
	u.Cleanup(func() { _ = conn.Close() })
	fmt.Fprintf(conn, "%s /apis/a.example.com/v1/namespaces/default/things/a?%s HTTP/1.1\r\nHost: "+
		"x\r\nImpersonate-User: jane\r\n%s\r\n", method, then, headers)
	return conn, bufio.NewReader(conn)
}

// counted reports whether the requests of jane hold the given number of flow control seats and the metrics show the
// given number of mutating requests in flight.
func (u *upgradeEnv) counted(seats, mutating int) bool {
	u.Helper()
	resp, err := u.client.Get(u.URL() + "/metrics")
	text := body(u.T, resp, err, http.StatusOK)
	return strings.Contains(text, fmt.Sprintf(
		"apiserver_flowcontrol_current_executing_requests{flow_schema=\"global-default\","+
			"priority_level=\"global-default\"} %d\n", seats)) &&
		strings.Contains(text, fmt.Sprintf("apiserver_current_inflight_requests{request_kind=\"mutating\"} %d\n",
			mutating))
}

// TestUpgradeHeaderHasADeadline checks that the Upgrade header does not make a request long-running. The request keeps
// its seat, is counted as a short request and gets 504 at its deadline, like the same request without the header.
func TestUpgradeHeaderHasADeadline(t *testing.T) {
	u := newUpgradeEnv(t)
	var all []*bufio.Reader
	for _, headers := range []string{
		"", "Connection: Upgrade\r\n", "Connection: Upgrade\r\nUpgrade: websocket\r\n",
		"Connection: keep-alive, upgrade\r\nUpgrade: SPDY/3.1\r\n",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPatch} {
			_, in := u.send(method, "then=never+answers", headers)
			all = append(all, in)
		}
	}
	within(t, func() bool { return u.counted(len(all), len(all)/2) })
	for i, in := range all {
		resp, err := http.ReadResponse(in, nil)
		if text := body(t, resp, err, http.StatusGatewayTimeout); text != "the backend API server did not respond "+
			"within the allotted time\n" {
			t.Errorf("request %d: %s", i, text)
		}
	}
	within(t, func() bool { return u.counted(0, 0) })

	// An endless response without an upgrade is aborted.
	_, in := u.send(http.MethodPatch, "then=streams", "Connection: Upgrade\r\nUpgrade: websocket\r\n")
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("the response ended without an error")
	}
}

// TestUpgradedRequestIsLongRunning checks that an upgraded request has no deadline, not even the client's timeout
// parameter. It holds no seat, is not counted as a short request and ends when the server shuts down.
func TestUpgradedRequestIsLongRunning(t *testing.T) {
	u := newUpgradeEnv(t)
	type upgraded struct {
		net.Conn
		in *bufio.Reader
	}
	var all []upgraded
	for _, then := range []string{"then=echoes", "then=echoes&timeout=1s"} {
		for _, method := range []string{http.MethodGet, http.MethodPatch} {
			conn, in := u.send(method, then, "Connection: Upgrade\r\nUpgrade: websocket\r\n")
			resp, err := http.ReadResponse(in, nil)
			if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
				t.Fatal(resp, err)
			}
			all = append(all, upgraded{conn, in})
		}
	}
	within(t, func() bool { return u.counted(0, 0) })
	// this request ends later than the upgraded requests would if they had a deadline
	_, in := u.send(http.MethodGet, "then=never+answers", "")
	resp, err := http.ReadResponse(in, nil)
	body(t, resp, err, http.StatusGatewayTimeout)
	for i, c := range all {
		fmt.Fprintf(c, "line %d\n", i)
		if line, err := c.in.ReadString('\n'); line != fmt.Sprintf("line %d\n", i) {
			t.Errorf("%q %v", line, err)
		}
	}
	// The shutdown waits for a request that is not upgraded yet. It ends upgraded requests.
	_, in = u.send(http.MethodPatch, "then=never+answers", "Connection: Upgrade\r\nUpgrade: websocket\r\n")
	within(t, func() bool { return u.counted(1, 1) })
	down := make(chan error, 1)
	go func() { down <- u.Shutdown() }()
	for _, c := range all {
		if rest, err := io.ReadAll(c.in); len(rest) > 0 {
			t.Errorf("%q %v", rest, err)
		}
	}
	resp, err = http.ReadResponse(in, nil)
	body(t, resp, err, http.StatusGatewayTimeout)
	if err := <-down; err != nil {
		t.Error(err)
	}
}
