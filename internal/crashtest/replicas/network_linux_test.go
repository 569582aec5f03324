package replicas_test

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// namespace is a network namespace and a mount namespace. One thread stays in them until the end of the test and starts
// their processes. The namespaces end with this thread and these processes, even if the test is killed.
type namespace struct {
	work chan func()
	tid  int // of the thread
	fd   int // of the namespace
}

func newNamespace(t *testing.T) *namespace {
	t.Helper()
	n, created := &namespace{work: make(chan func())}, make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			n.tid = unix.Gettid()
			n.fd, err = unix.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", n.tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		created <- err
		for f := range n.work {
			f()
		}
	}()
	if err := <-created; err != nil {
		t.Fatalf("create a network namespace: %v", err)
	}
	t.Cleanup(func() {
		close(n.work)
		_ = unix.Close(n.fd)
	})
	return n
}

// start starts a process in the namespace. The process is killed when the thread of the namespace ends.
func (n *namespace) start(c *exec.Cmd) error {
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	done := make(chan error)
	n.work <- func() { done <- c.Start() }
	return <-done
}

// path returns the path from outside of a file that has the given path in the namespace.
func (n *namespace) path(inside string) string {
	return fmt.Sprintf("/proc/self/task/%d/root%s", n.tid, inside)
}

// run runs a command in the namespace.
func (n *namespace) run(args ...string) error {
	var output strings.Builder
	c := exec.Command(args[0], args[1:]...)
	c.Stdout, c.Stderr = &output, &output
	err := n.start(c)
	if err == nil {
		err = c.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, output.String())
	}
	return nil
}

// dial connects to an address from the namespace.
func (n *namespace) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		if err = unix.Setns(n.fd, unix.CLONE_NEWNET); err == nil {
			conn, err = new(net.Dialer).DialContext(ctx, network, address)
		}
	}()
	<-done
	return conn, err
}

// network connects hosts through a router. The router can drop the packets from one host to another.
type network struct {
	router *namespace
	hosts  int

	mu     sync.Mutex
	blocks [][2]string // addresses: source, destination
}

// host is a machine of the network.
type host struct {
	*namespace
	address string
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{router: newNamespace(t)}
	if err := n.router.run("sh", "-c", "ip link set lo up && echo 1 > /proc/sys/net/ipv4/ip_forward"); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *network) newHost(t *testing.T) *host {
	t.Helper()
	n.hosts++
	h := &host{newNamespace(t), fmt.Sprintf("10.77.%d.2", n.hosts)}
	gateway := fmt.Sprintf("10.77.%d.1", n.hosts)
	link := fmt.Sprintf("host%d", n.hosts)
	for _, err := range []error{
		n.router.run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(h.tid)),
		n.router.run("ip", "address", "add", gateway+"/30", "dev", link),
		n.router.run("ip", "link", "set", link, "up"),
		h.run("ip", "link", "set", "lo", "up"),
		h.run("ip", "address", "add", h.address+"/30", "dev", "eth0"),
		h.run("ip", "link", "set", "eth0", "up"),
		h.run("ip", "route", "add", "default", "via", gateway),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// block drops the packets from one host to another. The senders notice nothing.
func (n *network) block(from, to *host) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	pair := [2]string{from.address, to.address}
	if slices.Contains(n.blocks, pair) {
		return nil
	}
	n.blocks = append(n.blocks, pair)
	return n.rule("add", pair)
}

func (n *network) rule(verb string, pair [2]string) error {
	return n.router.run("ip", "rule", verb, "from", pair[0], "to", pair[1], "blackhole")
}

// partition drops the packets between a host and others, in both directions.
func (n *network) partition(a *host, others ...*host) error {
	for _, b := range others {
		if err := n.block(a, b); err != nil {
			return err
		}
		if err := n.block(b, a); err != nil {
			return err
		}
	}
	return nil
}

// heal stops dropping packets.
func (n *network) heal() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, pair := range n.blocks {
		if err := n.rule("del", pair); err != nil {
			return err
		}
	}
	n.blocks = nil
	return nil
}
