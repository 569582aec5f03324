package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trellis-k8s/trellis/internal/access/pki"
)

// These are the addresses of the two ends of a veth link between the networks of a tunnel server and its agent. They
// are addresses of RFC 5737.
const serverEndAddress, agentEndAddress = "198.51.100.1", "198.51.100.2"

// ip runs the program ip in the network namespace in. A nil namespace is that of the test.
func ip(t *testing.T, in *netns, args string) {
	t.Helper()
	cmd := exec.Command("ip", strings.Fields(args)...)
	var output []byte
	if err := in.do(func() (err error) {
		output, err = cmd.CombinedOutput()
		return err
	}); err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, output)
	}
}

// addLink creates a veth link from this network namespace to another one.
func addLink(t *testing.T, to *netns) {
	t.Helper()
	var thread int
	_ = to.do(func() error {
		thread = unix.Gettid()
		return nil
	})
	ip(t, nil, fmt.Sprint("link add server-end type veth peer name agent-end netns ", thread))
	ip(t, nil, "addr add "+serverEndAddress+"/24 dev server-end")
	ip(t, to, "addr add "+agentEndAddress+"/24 dev agent-end")
	ip(t, nil, "link set server-end up")
	ip(t, to, "link set agent-end up")
}

// TestLinkTakenDown checks that both the server and the agent detect that the link between them is down. The
// connections through the tunnel end on both sides, and the error of new dials is that no agent is available. After
// the link is up again, the agent reconnects. KON-043 KON-053 KON-054
func TestLinkTakenDown(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no program ip: install iproute2 (apt-get install iproute2)")
	}
	if os.Getenv(ownNetwork) == "" {
		inOwnNetwork(t)
		return
	}
	setUpNetwork(t)
	for _, end := range []string{"server-end", "agent-end"} {
		t.Run(end, func(t *testing.T) { testLinkTakenDown(t, end) })
	}
}

func testLinkTakenDown(t *testing.T, end string) {
	keys, cluster := t.TempDir(), newNetns(t)
	if _, err := pki.Ensure(keys, []string{"localhost", "127.0.0.1", serverEndAddress}, time.Now()); err != nil {
		t.Fatal(err)
	}
	addLink(t, cluster)
	t.Cleanup(func() { ip(t, nil, "link delete server-end") })
	in := map[string]*netns{"server-end": nil, "agent-end": cluster}[end]
	e := echoOn(cluster.listen(t, nodeAddress+":0"))
	s := newTunnelServer(t, trellis, keys, overSocket, filepath.Join(shortFolder(t), "s"), "--keepalive-time=1s")
	newTunnelAgent(t, trellis, cluster, keys, s.agentPort, "--proxy-server-host="+serverEndAddress,
		"--keepalive-time=1s")
	dialer := s.newClient(t)
	eventually(t, "the server is ready", s.ready)
	for range 2 { // the link can go down again
		conns := e.connections(t, dialer, 50)
		ip(t, in, "link set "+end+" down")
		waitForErrors(t, conns)
		eventually(t, "the connections end at the destination", func() bool { return e.open.Load() == 0 })
		eventually(t, "the server has no agent", func() bool { return !s.ready() })
		checkNoAgent(t, func(ctx context.Context) (net.Conn,
			error) {
			return dialer.DialContext(ctx, "tcp", e.address)
		})
		ip(t, in, "link set "+end+" up")
		eventually(t, "the agent has reconnected", s.ready)
		for _, c := range e.connections(t, dialer, 10) {
			_ = c.Close()
		}
		eventually(t, "closed connections end at the destination", func() bool { return e.open.Load() == 0 })
	}
}

// waitForErrors waits until all connections end with an error other than io.EOF.
func waitForErrors(t *testing.T, conns []net.Conn) {
	t.Helper()
	for i, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(tunnelTimeout))
		if n, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF || os.IsTimeout(err) {
			t.Fatalf("read of connection %d: got %d bytes, %v, want an error other than EOF", i, n, err)
		}
	}
}

// checkNoAgent checks that a dial fails because no agent is available.
func checkNoAgent(t *testing.T, dial func(context.Context) (net.Conn, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tunnelTimeout)
	defer cancel()
	conn, err := dial(ctx)
	if err == nil {
		_ = conn.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "No agent available") {
		t.Errorf("dial without an agent: got %v, want \"No agent available\"", err)
	}
}
