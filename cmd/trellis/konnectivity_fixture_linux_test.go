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
	// nodeAddress is the address of a node in a network that is reachable only through a tunnel (an address of RFC
	// 5737).
	nodeAddress = "203.0.113.1"
	// tunnelTimeout limits each wait for a process.
	tunnelTimeout = 2 * time.Minute
	// logTail is the number of bytes at the end of a process's log that a failed test prints.
	logTail = 4000
)

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, tunnelTimeout, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("timed out after %v: %s", tunnelTimeout, what)
	}
}

// netns is a network namespace that has the address nodeAddress. A nil netns is the network namespace of the test.
type netns struct{ work chan func() }

func newNetns(t *testing.T) *netns {
	t.Helper()
	n, created := &netns{make(chan func())}, make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = addAddress("lo:1", nodeAddress)
		}
		created <- err
		for f := range n.work {
			f()
		}
	}()
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(n.work) })
	return n
}

// do calls a function in the namespace. The sockets that the function opens and the processes that it starts belong
// to the namespace.
func (n *netns) do(f func() error) error {
	if n == nil {
		return f()
	}
	done := make(chan error)
	n.work <- func() { done <- f() }
	return <-done
}

func (n *netns) listen(t *testing.T, address string) (l net.Listener) {
	t.Helper()
	err := n.do(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// relay relays each connection that the listener l accepts. It selects one of the addresses at random. In a fixed
// order, two reference proxy-agents would take too long to find all servers, because they dial at the same times.
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

// lastPort is the offset of the last port that newPort has returned. The ports are free, because the test has a
// separate network. The test cannot use port numbers that the kernel assigns, because the reference programs reject
// them.
var lastPort atomic.Int32

func newPort() int { return 8131 + int(lastPort.Add(1)) }

// newKeys creates a folder with certificates. The certificate apiserver is for all servers, and the certificate admin
// is for all clients.
func newKeys(t *testing.T) (dir string, keys *pki.Bundle) {
	t.Helper()
	dir = t.TempDir()
	keys, err := pki.Ensure(dir, []string{"localhost", "127.0.0.1", nodeAddress, "hook.default.svc"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return dir, keys
}

// implementation specifies whether a server or an agent is the one of Trellis or the reference program.
type implementation bool

const (
	trellis   implementation = true
	reference implementation = false
)

func (i implementation) String() string {
	return map[implementation]string{trellis: "Trellis", reference: "reference"}[i]
}

// command returns the command line of the server or the agent. It skips the test if the program is not available.
func (i implementation) command(t *testing.T, program string) []string {
	t.Helper()
	if i == trellis {
		return []string{"trellis", "konnectivity", program}
	}
	dir := os.Getenv("REFERENCE_KONNECTIVITY")
	if dir == "" {
		t.Skip("REFERENCE_KONNECTIVITY is not set: a folder with proxy-server and proxy-agent of " +
			"sigs.k8s.io/apiserver-network-proxy, built by `go build ./cmd/server ./cmd/agent`")
	}
	return []string{filepath.Join(dir, "proxy-"+program)}
}

// process is a process that runs until the end of the test.
type process struct {
	*exec.Cmd
	kill func() // sends SIGKILL, and waits for the end of the process
}

// launch starts a command in a network namespace.
func launch(t *testing.T, in *netns, args []string) *process {
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
		if log, _ := os.ReadFile(out.Name()); t.Failed() {
			t.Logf("%q: %s", args, log[max(0, len(log)-logTail):])
		}
	})
	return p
}

// transport is the protocol and transport between an API server and the tunnel server.
type transport struct {
	protocol string // proxyProtocol of an EgressSelectorConfiguration
	socket   bool   // a Unix socket instead of mTLS
}

func (tr transport) String() string {
	return tr.protocol + map[bool]string{true: " over a Unix socket", false: " over mTLS"}[tr.socket]
}

// tunnelServer is the process of a tunnel server.
type tunnelServer struct {
	*process
	args                 []string
	frontend             string // socket, or address
	agentPort, adminPort int
	healthURL            string
}

// newTunnelServer starts a tunnel server that serves API servers at frontend, with the certificates in the folder keys.
func newTunnelServer(
	t *testing.T, i implementation, keys string, tr transport, frontend string, more ...string,
) *tunnelServer {
	t.Helper()
	healthPort := newPort()
	s := &tunnelServer{frontend: frontend, agentPort: newPort(), adminPort: newPort(),
		healthURL: fmt.Sprintf("http://127.0.0.1:%d", healthPort)}
	mode := map[string]string{"GRPC": "grpc", "HTTPConnect": "http-connect"}[tr.protocol]
	s.args = append(i.command(t, "server"), "--mode="+mode, fmt.Sprint("--agent-port=", s.agentPort),
		fmt.Sprint("--admin-port=", s.adminPort), fmt.Sprint("--health-port=", healthPort),
		"--cluster-cert="+keys+"/apiserver.crt", "--cluster-key="+keys+"/apiserver.key",
		"--cluster-ca-cert="+keys+"/ca.crt")
	if tr.socket {
		s.args = append(s.args, "--uds-name="+frontend, "--server-port=0")
	} else {
		_, port, _ := net.SplitHostPort(frontend)
		s.args = append(s.args, "--server-port="+port, "--server-cert="+keys+"/apiserver.crt",
			"--server-key="+keys+"/apiserver.key", "--server-ca-cert="+keys+"/ca.crt")
	}
	s.args = append(s.args, more...)
	s.process = launch(t, nil, s.args)
	return s
}

// ready reports whether the server has an agent.
func (s *tunnelServer) ready() bool {
	resp, err := http.Get(s.healthURL + "/readyz")
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// tunnelAgent is the process of an agent.
type tunnelAgent struct {
	*process
	adminPort int
}

// newTunnelAgent starts an agent in a network namespace. The agent connects to the tunnel server at a loopback port
// of this namespace.
func newTunnelAgent(t *testing.T, i implementation, in *netns, keys string, port int, more ...string) *tunnelAgent {
	t.Helper()
	a := &tunnelAgent{adminPort: newPort()}
	a.process = launch(t, in, append(append(i.command(t, "agent"), "--proxy-server-host=127.0.0.1",
		fmt.Sprint("--proxy-server-port=", port), "--ca-cert="+keys+"/ca.crt",
		"--agent-cert="+keys+"/admin.crt", "--agent-key="+keys+"/admin.key",
		fmt.Sprint("--admin-server-port=", a.adminPort), fmt.Sprint("--health-server-port=", newPort())), more...))
	return a
}

// metric returns the value of a metric at an admin port, or -1 if the metric does not exist. name is the name of the
// metric without the prefix that the reference programs use.
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

// shortFolder creates a folder with a path that is short enough for the path of a socket.
func shortFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
