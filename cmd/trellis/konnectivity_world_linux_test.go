package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trellis-k8s/trellis/internal/access/pki"
)

const (
	// nodeAddress is that of the node (RFC 5737), in a network that nothing leads to but a tunnel.
	nodeAddress = "203.0.113.1"
	// tunnelPatience is how long anything may take that processes do.
	tunnelPatience = 2 * time.Minute
	// lastWords is how many bytes of a process's log a test that fails shows.
	lastWords = 4000
)

// eventually waits for something to become true.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, tunnelPatience, true,
		func(context.Context) (bool, error) { return is(), nil })
	if err != nil {
		t.Fatalf("not within %v: %s", tunnelPatience, what)
	}
}

// remote is a network of its own with the node's address.
type remote struct{ work chan func() }

func newRemote(t *testing.T) *remote {
	t.Helper()
	r, made := &remote{make(chan func())}, make(chan error)
	go func() {
		runtime.LockOSThread() // which ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = addAddress(nodeAddress)
		}
		made <- err
		for f := range r.work {
			f()
		}
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(r.work) })
	return r
}

// do calls a function there. Sockets that it makes, and processes that it starts, stay there.
func (r *remote) do(f func() error) error {
	if r == nil {
		return f()
	}
	done := make(chan error)
	r.work <- func() { done <- f() }
	return <-done
}

func (r *remote) listen(t *testing.T, address string) (l net.Listener) {
	t.Helper()
	err := r.do(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// relay leads those who connect to l to one of several addresses out here: to any, as the reference's agents that dial
// in step would wait too long for one that takes turns.
func relay(l net.Listener, addresses ...string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			to, err := net.Dial("tcp", addresses[rand.IntN(len(addresses))])
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, to)
				_ = conn.Close()
			}()
			_, _ = io.Copy(to, conn)
			_ = to.Close()
		}()
	}
}

// lastPort is the one that was given out last. The network is the test's own, and the reference's programs refuse those
// that systems give out.
var lastPort atomic.Int32

func newPort() int { return 8131 + int(lastPort.Add(1)) }

// newKeys is a folder with certificates for all: apiserver for those who serve, admin for those who connect.
func newKeys(t *testing.T) (dir string, keys *pki.Bundle) {
	t.Helper()
	dir = t.TempDir()
	keys, err := pki.Ensure(dir, []string{"localhost", "127.0.0.1", nodeAddress, "hook.default.svc"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return dir, keys
}

// whose is who has made an end of a tunnel.
type whose bool

const (
	ours       whose = true
	references whose = false
)

func (w whose) String() string {
	return map[whose]string{ours: "our", references: "the reference's"}[w]
}

// command is that of an end: server or agent. The test is skipped where it is not there.
func (w whose) command(t *testing.T, end string) []string {
	t.Helper()
	if w == ours {
		return []string{"trellis", "konnectivity", end}
	}
	dir := os.Getenv("REFERENCE_KONNECTIVITY")
	if dir == "" {
		t.Skip("REFERENCE_KONNECTIVITY is not set: a folder with proxy-server and proxy-agent of " +
			"sigs.k8s.io/apiserver-network-proxy, built by `go build ./cmd/server ./cmd/agent`")
	}
	return []string{filepath.Join(dir, "proxy-"+end)}
}

// process is one that runs until the end of the test.
type process struct {
	*exec.Cmd
	kill func() // as kill -9, and waits for its end
}

// launch starts a command in a network.
func launch(t *testing.T, in *remote, args []string) *process {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(args[0], args[1:]...)}
	p.Stdout, p.Stderr, p.SysProcAttr = out, out, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := in.do(p.Start); err != nil {
		t.Fatal(err)
	}
	p.kill = func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	}
	t.Cleanup(func() {
		p.kill()
		_ = out.Close()
		if said, _ := os.ReadFile(out.Name()); t.Failed() {
			t.Logf("%q: %s", args, said[max(0, len(said)-lastWords):])
		}
	})
	return p
}

// transport is how an API server reaches the tunnel server.
type transport struct {
	protocol string // as in an EgressSelectorConfiguration
	socket   bool   // and not mTLS
}

func (tr transport) String() string {
	return tr.protocol + map[bool]string{true: " over a Unix socket", false: " over mTLS"}[tr.socket]
}

// tunnelServer is a process.
type tunnelServer struct {
	*process
	args          []string
	front         string // socket, or address
	agents, admin int
	health        string // URL
}

// newTunnelServer starts one, whose front is where it is told, and which has certificates of a folder.
func newTunnelServer(t *testing.T, w whose, keys string, tr transport, front string, more ...string) *tunnelServer {
	t.Helper()
	health := newPort()
	s := &tunnelServer{front: front, agents: newPort(), admin: newPort(),
		health: fmt.Sprintf("http://127.0.0.1:%d", health)}
	mode := map[string]string{"GRPC": "grpc", "HTTPConnect": "http-connect"}[tr.protocol]
	s.args = append(w.command(t, "server"), "--mode="+mode, fmt.Sprint("--agent-port=", s.agents),
		fmt.Sprint("--admin-port=", s.admin), fmt.Sprint("--health-port=", health),
		"--cluster-cert="+keys+"/apiserver.crt", "--cluster-key="+keys+"/apiserver.key", "--cluster-ca-cert="+keys+
			"/ca.crt")
	if tr.socket {
		s.args = append(s.args, "--uds-name="+front, "--server-port=0")
	} else {
		_, port, _ := net.SplitHostPort(front)
		s.args = append(s.args, "--server-port="+port, "--server-cert="+keys+"/apiserver.crt",
			"--server-key="+keys+"/apiserver.key", "--server-ca-cert="+keys+"/ca.crt")
	}
	s.args = append(s.args, more...)
	s.process = launch(t, nil, s.args)
	return s
}

// ready says whether the server has an agent.
func (s *tunnelServer) ready() bool {
	resp, err := http.Get(s.health + "/readyz")
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// tunnelAgent is a process.
type tunnelAgent struct {
	*process
	admin int
}

// newTunnelAgent starts one in a network, which connects to a port of this machine there.
func newTunnelAgent(t *testing.T, w whose, in *remote, keys string, server int, more ...string) *tunnelAgent {
	t.Helper()
	a := &tunnelAgent{admin: newPort()}
	a.process = launch(t, in, append(append(w.command(t, "agent"), "--proxy-server-host=127.0.0.1",
		fmt.Sprint("--proxy-server-port=", server), "--ca-cert="+keys+"/ca.crt",
		"--agent-cert="+keys+"/admin.crt", "--agent-key="+keys+
			"/admin.key", fmt.Sprint("--admin-server-port=", a.admin), fmt.Sprint("--health-server-port=", newPort())),
		more...))
	return a
}

// metric is the value of one at an admin port, or -1. Their names are the reference's.
func metric(port int, name string) int {
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
	if err != nil {
		return -1
	}
	text, err := io.ReadAll(resp.Body)
	found := regexp.MustCompile(`(?m)^konnectivity_network_proxy_` + name + ` (\d+)$`).FindSubmatch(text)
	if err = errors.Join(err, resp.Body.Close()); err != nil || found == nil {
		return -1
	}
	n, _ := strconv.Atoi(string(found[1]))
	return n
}

// shortFolder is one whose path leaves room for the name of a socket.
func shortFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
