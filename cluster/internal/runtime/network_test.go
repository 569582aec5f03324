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

// echoServer is a program name. If the test program is started under this name, it is an echo server. Its argument is
// the address to listen on.
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

// setNetwork sets the network of a runtime, and deletes its bridge after the test.
func setNetwork(t *testing.T, o *Options, network Network) {
	t.Helper()
	o.Network, o.PodCIDR = network, netip.MustParsePrefix("10.213.0.0/16")
	if network != BridgeNetwork {
		return
	}
	probe := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "trellisprobe"}}
	if err := netlink.LinkAdd(probe); err != nil {
		t.Skipf("cannot create a bridge on this machine: %v", err)
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

// TestBridge checks that Pods have different addresses on the bridge and reach each other, and that bridges of
// different runtimes have different names and ranges.
func TestBridge(t *testing.T) {
	requireRoot(t)
	f := newFixture(t, func(o *Options, _ *v1.PodSandboxConfig) { setNetwork(t, o, BridgeNetwork) })
	server := sh("")
	server.Image.Image, server.Command = "echo", []string{echoServer, ":8080"}
	f.start(server)
	status, err := f.PodSandboxStatus(f.ctx, f.pod, false)
	if err != nil {
		t.Fatal(err)
	}
	ip := status.GetStatus().GetNetwork().GetIp()
	if !f.bridge.Subnet.Contains(netip.MustParseAddr(ip)) || !f.PodCIDR.Contains(f.bridge.Subnet.Addr()) {
		t.Errorf("the pod's address is %s, the node's range %s", ip, f.bridge.Subnet)
	}
	if got := f.echo(ip + ":8080"); got != "hello" {
		t.Errorf("response of the Pod to the node: %q", got)
	}
	second := podConfig(t.TempDir(), "second")
	id, err := f.RunPodSandbox(f.ctx, second, "")
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := f.sandbox(id).dial(ip + ":8080"); err != nil {
		t.Errorf("connecting from one Pod to another: %v", err)
	} else {
		conn.Close()
	}
	if a := f.sandbox(id).Address; a == ip {
		t.Errorf("two pods have the address %s", a)
	}
	if err := f.StopPodSandbox(f.ctx, id); err != nil {
		t.Fatal(err)
	}
	if _, err := netlink.LinkByName(vethName(id)); err == nil {
		t.Error("the veth pair of a stopped Pod exists")
	}
	host := podConfig(t.TempDir(), "host")
	host.Linux.SecurityContext.NamespaceOptions.Network = v1.NamespaceMode_NODE
	if id, err = f.RunPodSandbox(f.ctx, host, ""); err != nil {
		t.Fatal(err)
	}
	if a := f.sandbox(id).Address; a != "" {
		t.Errorf("a Pod with the host's network has the address %s", a)
	}
	other, err := openBridge(t.TempDir(), f.PodCIDR)
	if err != nil {
		t.Fatal(err)
	}
	link, _ := netlink.LinkByName(other.Name)
	defer netlink.LinkDel(link)
	if other.Name == f.bridge.Name || other.Subnet.Overlaps(f.bridge.Subnet) {
		t.Errorf("two nodes on one machine have %v and %v", other, f.bridge)
	}
	occupied := nextSubnet(other.Subnet)
	lo, _ := netlink.LinkByName("lo")
	address := &netlink.Addr{IPNet: &net.IPNet{IP: occupied.Addr().Next().AsSlice(), Mask: net.CIDRMask(32, 32)}}
	if err := netlink.AddrAdd(lo, address); err != nil {
		t.Fatal(err)
	}
	defer netlink.AddrDel(lo, address)
	third, err := openBridge(t.TempDir(), f.PodCIDR)
	if err != nil {
		t.Fatal(err)
	}
	if link, err := netlink.LinkByName(third.Name); err == nil {
		defer netlink.LinkDel(link)
	}
	if third.Subnet == occupied {
		t.Errorf("a bridge has the range %s, which contains another address of this machine", occupied)
	}
	again, err := openBridge(f.Root, f.PodCIDR)
	if err != nil || again.Name != f.bridge.Name || again.Subnet != f.bridge.Subnet {
		t.Errorf("opened again: %v, %v", again, err)
	}
}

// TestForeignBridge checks that a runtime does not use a bridge of another runtime. The other bridge has the same name
// and range, as is possible after a reboot. The test deletes the bridge and the Pod like a reboot.
func TestForeignBridge(t *testing.T) {
	requireRoot(t)
	runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(mustLink(t, "lo")); err != nil {
		t.Fatal(err)
	}
	var o Options
	f := newFixture(t, func(opened *Options, _ *v1.PodSandboxConfig) {
		setNetwork(t, opened, BridgeNetwork)
		o = *opened
	})
	before := f.bridge
	again, err := openBridge(f.Root, f.PodCIDR)
	if err != nil || *again != (bridge{Name: before.Name, Subnet: before.Subnet}) {
		t.Errorf("opened again: %v, %v", again, err)
	}
	if err := errors.Join(netlink.LinkDel(mustLink(t, before.Name)), f.Close(f.ctx)); err != nil {
		t.Fatal(err)
	}
	pause := f.sandbox(f.pod).PauseProcess
	pause.Signal(unix.SIGKILL)
	f.eventually("the Pod has ended", func() bool { return !pause.Alive() })
	other, err := openBridge(t.TempDir(), o.PodCIDR)
	if err != nil || other.Name != before.Name || other.Subnet != before.Subnet {
		t.Fatalf("another node has the bridge %v, want %v: %v", other, before, err)
	}

	if f.Runtime, err = New(o); err != nil {
		t.Fatal(err)
	}
	if f.bridge.Name == other.Name || f.bridge.Subnet.Overlaps(other.Subnet) {
		t.Errorf("two nodes have %v and %v", f.bridge, other)
	}
	pod, err := f.RunPodSandbox(f.ctx, podConfig(t.TempDir(), "next"), "")
	if err != nil {
		t.Fatal(err)
	}
	if a := netip.MustParseAddr(f.sandbox(pod).Address); !f.bridge.Subnet.Contains(a) {
		t.Errorf("the next pod has %s, the bridge %s", a, f.bridge.Subnet)
	}
	if addresses, err := netlink.AddrList(mustLink(t, other.Name), unix.AF_INET); err != nil || len(addresses) != 1 {
		t.Errorf("addresses of the other node's bridge: %v, %v", addresses, err)
	}
	if f.sandbox(f.pod).ready() || !f.sandbox(f.pod).Stopped {
		t.Error("a dead Pod is not stopped, and keeps its ports and address")
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

// TestPortsOfAddresses checks which ports of two Pods conflict, with and without host addresses.
func TestPortsOfAddresses(t *testing.T) {
	pod := func(host string, number, inside int32, namespaces int) *sandbox {
		mapping := &v1.PortMapping{HostIp: host, HostPort: number, ContainerPort: inside}
		return &sandbox{Namespaces: namespaces, Config: &v1.PodSandboxConfig{PortMappings: []*v1.PortMapping{mapping}}}
	}
	const separate = unix.CLONE_NEWNET
	for _, c := range []struct {
		a, b *sandbox
		free bool
	}{
		{pod("192.0.2.1", 80, 8080, separate), pod("192.0.2.2", 80, 8080, separate), true},
		{pod("192.0.2.1", 80, 8080, separate), pod("192.0.2.1", 80, 8080, separate), false},
		{pod("192.0.2.1", 80, 8080, separate), pod("", 80, 8080, separate), false},
		{pod("0.0.0.0", 80, 8080, separate), pod("192.0.2.1", 80, 8080, separate), false},
		{pod("192.0.2.1", 80, 8080, separate), pod("::", 80, 8080, separate), false},
		{pod("192.0.2.1", 80, 80, 0), pod("192.0.2.2", 80, 80, 0), true},
		{pod("192.0.2.1", 80, 8080, 0), pod("192.0.2.2", 81, 8080, 0), false}, // both listen on port 8080 of the node
	} {
		r := &Runtime{sandboxes: map[string]*sandbox{"a": c.a}}
		if err := r.checkPorts(c.b); (err == nil) != c.free {
			t.Errorf("%v together with %v: %v", c.b.Config, c.a.Config, err)
		}
	}
}

// TestSharedAddress checks that Pods without a bridge have the node's address, and that two of them cannot have the
// same port.
func TestSharedAddress(t *testing.T) {
	f := newFixture(t, func(_ *Options, c *v1.PodSandboxConfig) {
		c.PortMappings = []*v1.PortMapping{{ContainerPort: 8080}}
	})
	status, err := f.PodSandboxStatus(f.ctx, f.pod, false)
	if err != nil || status.GetStatus().GetNetwork().GetIp() != "192.0.2.7" {
		t.Errorf("the pod's address: %v, %v", status, err)
	}
	second := podConfig(t.TempDir(), "second")
	second.PortMappings = []*v1.PortMapping{{ContainerPort: 80}, {ContainerPort: 8080}}
	_, err = f.RunPodSandbox(f.ctx, second, "")
	if err == nil || !strings.Contains(err.Error(),
		"port 8080/TCP of the node is in use by pod default/web: pods without a separate network share the node's "+
			"address") {
		t.Errorf("a second Pod with the port: %v", err)
	}
	second.PortMappings[1].Protocol = v1.Protocol_UDP
	if _, err = f.RunPodSandbox(f.ctx, second, ""); err != nil {
		t.Errorf("with another protocol: %v", err)
	}
	if err := f.StopPodSandbox(f.ctx, f.pod); err != nil {
		t.Fatal(err)
	}
	third := podConfig(t.TempDir(), "third")
	third.PortMappings = []*v1.PortMapping{{ContainerPort: 8080}}
	if _, err = f.RunPodSandbox(f.ctx, third, ""); err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
}

// TestMissingNodeIP checks that New fails if Pods have neither a bridge nor a node address.
func TestMissingNodeIP(t *testing.T) {
	o, err := options(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o.NodeIP = netip.Addr{}
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "Options.NodeIP is not set") {
		t.Errorf("got error %v, want a missing node address", err)
	}
}

// TestBridgeAddresses checks the order in which a bridge allocates addresses. It also checks the range that nextSubnet
// returns.
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
		t.Errorf("address after the last one: %s", a)
	}
	if p := nextSubnet(netip.MustParsePrefix("10.0.255.0/24")); p.String() != "10.1.0.0/24" {
		t.Errorf("next range: %s", p)
	}
}
