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

// The two ends of a cable (RFC 5737) between the network of a tunnel server and that of its agent.
const nearAddress, distantAddress = "198.51.100.1", "198.51.100.2"

// ip changes a network.
func ip(t *testing.T, in *remote, args string) {
	t.Helper()
	cmd := exec.Command("ip", strings.Fields(args)...)
	var said []byte
	if err := in.do(func() (err error) {
		said, err = cmd.CombinedOutput()
		return err
	}); err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, said)
	}
}

// plug leads a cable from this network to another one.
func plug(t *testing.T, to *remote) {
	t.Helper()
	var thread int
	_ = to.do(func() error {
		thread = unix.Gettid()
		return nil
	})
	ip(t, nil, fmt.Sprint("link add near type veth peer name distant netns ", thread))
	ip(t, nil, "addr add "+nearAddress+"/24 dev near")
	ip(t, to, "addr add "+distantAddress+"/24 dev distant")
	ip(t, nil, "link set near up")
	ip(t, to, "link set distant up")
}

// KON-043 KON-053 KON-054: a cable between server and agent that is taken away says nothing to either. Both find it
// out, what goes through it ends at both ends, new dials say that there is no agent, and once the cable is back so is
// the agent.
func TestLinkTakenDown(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("there is no ip here, of iproute2 (apt-get install iproute2)")
	}
	if os.Getenv(ownNetwork) == "" {
		inOwnNetwork(t)
		return
	}
	setUpNetwork(t)
	for _, pulled := range []string{"near", "distant"} {
		t.Run("the end that is "+pulled, func(t *testing.T) { linkTakenDown(t, pulled) })
	}
}

func linkTakenDown(t *testing.T, pulled string) {
	keys, cluster := t.TempDir(), newRemote(t)
	if _, err := pki.Ensure(keys, []string{"localhost", "127.0.0.1", nearAddress}, time.Now()); err != nil {
		t.Fatal(err)
	}
	plug(t, cluster)
	t.Cleanup(func() { ip(t, nil, "link delete near") })
	at := map[string]*remote{"near": nil, "distant": cluster}[pulled]
	e := echoOn(cluster.listen(t, nodeAddress+":0"))
	s := newTunnelServer(t, ours, keys, overSocket, filepath.Join(shortFolder(t), "s"), "--keepalive-time=1s")
	newTunnelAgent(t, ours, cluster, keys, s.agents, "--proxy-server-host="+nearAddress, "--keepalive-time=1s")
	by := s.through(t)
	eventually(t, "the server is ready", s.ready)
	for range 2 { // what has been taken away once may be again
		conns := e.connections(t, by, 50)
		ip(t, at, "link set "+pulled+" down")
		endAll(t, conns)
		eventually(t, "connections end at the destination", func() bool { return e.open.Load() == 0 })
		eventually(t, "the server has no agent", func() bool { return !s.ready() })
		noAgent(t, func(ctx context.Context) (net.Conn, error) { return by.DialContext(ctx, "tcp", e.address) })
		ip(t, at, "link set "+pulled+" up")
		eventually(t, "the agent is back", s.ready)
		for _, c := range e.connections(t, by, 10) {
			_ = c.Close()
		}
		eventually(t, "connections that are closed end at the destination", func() bool { return e.open.Load() == 0 })
	}
}

// endAll waits until connections end, each with an error.
func endAll(t *testing.T, conns []net.Conn) {
	t.Helper()
	for i, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(tunnelPatience))
		if n, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF || os.IsTimeout(err) {
			t.Fatalf("connection %d ends with %d, %v", i, n, err)
		}
	}
}

func noAgent(t *testing.T, dial func(context.Context) (net.Conn, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tunnelPatience)
	defer cancel()
	conn, err := dial(ctx)
	if err == nil {
		_ = conn.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "No agent available") {
		t.Errorf("without an agent a dial ends with %v", err)
	}
}
