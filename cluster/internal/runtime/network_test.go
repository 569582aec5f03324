package runtime

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// echoServer is a name under which this test is a server, of the address that is its argument.
const echoServer = "echo-server"

func serveEcho(address string) {
	listener, err := net.Listen("tcp", address)
	for err == nil {
		var conn net.Conn
		if conn, err = listener.Accept(); err == nil {
			go func() {
				io.Copy(conn, conn)
				conn.Close()
			}()
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// setNetwork has a runtime use a network, and takes its bridge away at the end.
func setNetwork(t *testing.T, o *Options, network Network) {
	t.Helper()
	o.Network, o.PodCIDR = network, netip.MustParsePrefix("10.213.0.0/16")
	if network != BridgeNetwork {
		return
	}
	probe := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "trellisprobe"}}
	if err := netlink.LinkAdd(probe); err != nil {
		t.Skipf("this kernel lets nobody make a bridge here: %v", err)
	}
	netlink.LinkDel(probe)
	root := o.Root
	t.Cleanup(func() {
		if b, err := openBridge(root, o.PodCIDR); err == nil {
			if link, err := netlink.LinkByName(b.Name); err == nil {
				netlink.LinkDel(link)
			}
		}
	})
}

func TestBridge(t *testing.T) {
	requireRoot(t)
	w := newFixture(t, func(o *Options, _ *v1.PodSandboxConfig) { setNetwork(t, o, BridgeNetwork) })
	server := sh("")
	server.Image.Image, server.Command = "echo", []string{echoServer, ":8080"}
	w.start(server)
	status, err := w.PodSandboxStatus(w.ctx, w.pod, false)
	if err != nil {
		t.Fatal(err)
	}
	ip := status.GetStatus().GetNetwork().GetIp()
	if !w.bridge.Subnet.Contains(netip.MustParseAddr(ip)) || !w.PodCIDR.Contains(w.bridge.Subnet.Addr()) {
		t.Errorf("the pod's address is %s, the node's range %s", ip, w.bridge.Subnet)
	}
	if got := w.echo(ip + ":8080"); got != "hello" {
		t.Errorf("the node asks the pod: %q", got)
	}
	second := podConfig(t.TempDir(), "second")
	id, err := w.RunPodSandbox(w.ctx, second, "")
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := w.sandbox(id).dial(ip + ":8080"); err != nil {
		t.Errorf("one pod asks another: %v", err)
	} else {
		conn.Close()
	}
	if a := w.sandbox(id).Address; a == ip {
		t.Errorf("two pods have the address %s", a)
	}
	if err := w.StopPodSandbox(w.ctx, id); err != nil {
		t.Fatal(err)
	}
	if _, err := netlink.LinkByName(vethName(id)); err == nil {
		t.Error("the cable of a pod that was stopped is there")
	}
	host := podConfig(t.TempDir(), "host")
	host.Linux.SecurityContext.NamespaceOptions.Network = v1.NamespaceMode_NODE
	if id, err = w.RunPodSandbox(w.ctx, host, ""); err != nil {
		t.Fatal(err)
	}
	if a := w.sandbox(id).Address; a != "" {
		t.Errorf("a pod of the host's network has the address %s", a)
	}
	other, err := openBridge(t.TempDir(), w.PodCIDR)
	if err != nil {
		t.Fatal(err)
	}
	link, _ := netlink.LinkByName(other.Name)
	defer netlink.LinkDel(link)
	if other.Name == w.bridge.Name || other.Subnet.Overlaps(w.bridge.Subnet) {
		t.Errorf("two nodes on one machine have %v and %v", other, w.bridge)
	}
	taken := nextSubnet(other.Subnet)
	lo, _ := netlink.LinkByName("lo")
	address := &netlink.Addr{IPNet: &net.IPNet{IP: taken.Addr().Next().AsSlice(), Mask: net.CIDRMask(32, 32)}}
	if err := netlink.AddrAdd(lo, address); err != nil {
		t.Fatal(err)
	}
	defer netlink.AddrDel(lo, address)
	third, err := openBridge(t.TempDir(), w.PodCIDR)
	if err != nil {
		t.Fatal(err)
	}
	if link, err := netlink.LinkByName(third.Name); err == nil {
		defer netlink.LinkDel(link)
	}
	if third.Subnet == taken {
		t.Errorf("a bridge has %s, where something else on this machine has an address", taken)
	}
	again, err := openBridge(w.Root, w.PodCIDR)
	if err != nil || again.Name != w.bridge.Name || again.Subnet != w.bridge.Subnet {
		t.Errorf("opened again: %v, %v", again, err)
	}
}

// When the machine has started anew, bridges are gone and pods dead. A bridge that has the name or the range of a node's by
// then is another's.
func TestForeignBridge(t *testing.T) {
	requireRoot(t)
	runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(mustLink(t, "lo")); err != nil {
		t.Fatal(err)
	}
	var o Options
	w := newFixture(t, func(opened *Options, _ *v1.PodSandboxConfig) {
		setNetwork(t, opened, BridgeNetwork)
		o = *opened
	})
	before := w.bridge
	again, err := openBridge(w.Root, w.PodCIDR)
	if err != nil || *again != (bridge{Name: before.Name, Subnet: before.Subnet}) {
		t.Errorf("found again: %v, %v", again, err)
	}
	if err := errors.Join(netlink.LinkDel(mustLink(t, before.Name)), w.Close(w.ctx)); err != nil {
		t.Fatal(err)
	}
	holder := w.sandbox(w.pod).PauseProcess
	holder.Signal(unix.SIGKILL)
	w.eventually("the pod is dead", func() bool { return !holder.Alive() })
	other, err := openBridge(t.TempDir(), o.PodCIDR)
	if err != nil || other.Name != before.Name || other.Subnet != before.Subnet {
		t.Fatalf("another node has %v, not the first one's %v: %v", other, before, err)
	}

	if w.Runtime, err = New(o); err != nil {
		t.Fatal(err)
	}
	if w.bridge.Name == other.Name || w.bridge.Subnet.Overlaps(other.Subnet) {
		t.Errorf("two nodes have %v and %v", w.bridge, other)
	}
	pod, err := w.RunPodSandbox(w.ctx, podConfig(t.TempDir(), "next"), "")
	if err != nil {
		t.Fatal(err)
	}
	if a := netip.MustParseAddr(w.sandbox(pod).Address); !w.bridge.Subnet.Contains(a) {
		t.Errorf("the next pod has %s, the bridge %s", a, w.bridge.Subnet)
	}
	if addresses, err := netlink.AddrList(mustLink(t, other.Name), unix.AF_INET); err != nil || len(addresses) != 1 {
		t.Errorf("the other's bridge has %v, %v", addresses, err)
	}
	if w.sandbox(w.pod).ready() || !w.sandbox(w.pod).Stopped {
		t.Error("a pod that is dead holds on to its ports and address")
	}
}

func mustLink(t *testing.T, name string) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func TestPortsOfAddresses(t *testing.T) {
	pod := func(host string, number, inside int32, spaces int) *sandbox {
		return &sandbox{Namespaces: spaces, Config: &v1.PodSandboxConfig{PortMappings: []*v1.PortMapping{{HostIp: host, HostPort: number, ContainerPort: inside}}}}
	}
	const own = unix.CLONE_NEWNET
	for _, c := range []struct {
		a, b *sandbox
		free bool
	}{
		{pod("192.0.2.1", 80, 8080, own), pod("192.0.2.2", 80, 8080, own), true},
		{pod("192.0.2.1", 80, 8080, own), pod("192.0.2.1", 80, 8080, own), false},
		{pod("192.0.2.1", 80, 8080, own), pod("", 80, 8080, own), false},
		{pod("0.0.0.0", 80, 8080, own), pod("192.0.2.1", 80, 8080, own), false},
		{pod("192.0.2.1", 80, 8080, own), pod("::", 80, 8080, own), false},
		{pod("192.0.2.1", 80, 80, 0), pod("192.0.2.2", 80, 80, 0), true},
		{pod("192.0.2.1", 80, 8080, 0), pod("192.0.2.2", 81, 8080, 0), false}, // both listen at 8080 of the node
	} {
		r := &Runtime{sandboxes: map[string]*sandbox{"a": c.a}}
		if err := r.checkPorts(c.b); (err == nil) != c.free {
			t.Errorf("%v beside %v: %v", c.b.Config, c.a.Config, err)
		}
	}
}

func TestSharedAddress(t *testing.T) {
	w := newFixture(t, func(_ *Options, c *v1.PodSandboxConfig) {
		c.PortMappings = []*v1.PortMapping{{ContainerPort: 8080}}
	})
	status, err := w.PodSandboxStatus(w.ctx, w.pod, false)
	if err != nil || status.GetStatus().GetNetwork().GetIp() != "192.0.2.7" {
		t.Errorf("the pod's address: %v, %v", status, err)
	}
	second := podConfig(t.TempDir(), "second")
	second.PortMappings = []*v1.PortMapping{{ContainerPort: 80}, {ContainerPort: 8080}}
	_, err = w.RunPodSandbox(w.ctx, second, "")
	if err == nil || !strings.Contains(err.Error(), "port 8080/TCP of the node is taken by pod default/web: pods without a network of their own share the node's address") {
		t.Errorf("a second pod with the port: %v", err)
	}
	second.PortMappings[1].Protocol = v1.Protocol_UDP
	if _, err = w.RunPodSandbox(w.ctx, second, ""); err != nil {
		t.Errorf("with another protocol: %v", err)
	}
	if err := w.StopPodSandbox(w.ctx, w.pod); err != nil {
		t.Fatal(err)
	}
	third := podConfig(t.TempDir(), "third")
	third.PortMappings = []*v1.PortMapping{{ContainerPort: 8080}}
	if _, err = w.RunPodSandbox(w.ctx, third, ""); err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
}

func TestMissingNodeIP(t *testing.T) {
	o, err := options(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o.NodeIP = netip.Addr{}
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "nobody said which") {
		t.Errorf("pods would have no address: %v", err)
	}
}

func TestBridgeAddresses(t *testing.T) {
	b := &bridge{Subnet: netip.MustParsePrefix("10.0.0.0/29")}
	used := map[string]bool{}
	var got []string
	for {
		a, err := b.allocate(used)
		if err != nil {
			break
		}
		used[a.String()] = true
		got = append(got, a.String())
	}
	if want := "10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5 10.0.0.6"; strings.Join(got, " ") != want {
		t.Errorf("addresses: %v, want %s", got, want)
	}
	delete(used, "10.0.0.2")
	delete(used, "10.0.0.6")
	if a, _ := b.allocate(used); a.String() != "10.0.0.2" {
		t.Errorf("after the last one: %s", a)
	}
	if p := nextSubnet(netip.MustParsePrefix("10.0.255.0/24")); p.String() != "10.1.0.0/24" {
		t.Errorf("next: %s", p)
	}
}
