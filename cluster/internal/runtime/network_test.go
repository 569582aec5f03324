package runtime

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
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

// onNetwork has a runtime use a network, and takes its bridge away at the end.
func onNetwork(t *testing.T, o *Options, network Network) {
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
	needRoot(t)
	w := open(t, func(o *Options, _ *v1.PodSandboxConfig) { onNetwork(t, o, BridgeNetwork) })
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
	if got := w.ask(ip + ":8080"); got != "hello" {
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
	if _, err := netlink.LinkByName(cable(id)); err == nil {
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
	taken := next(other.Subnet)
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

func TestSharedAddress(t *testing.T) {
	w := open(t, func(_ *Options, c *v1.PodSandboxConfig) {
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

func TestNobodysAddress(t *testing.T) {
	o, err := options(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o.NodeIP = netip.Addr{}
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "nobody said which") {
		t.Errorf("pods would have no address: %v", err)
	}
}

func TestRangesOfABridge(t *testing.T) {
	b := &bridge{Subnet: netip.MustParsePrefix("10.0.0.0/29")}
	used := map[string]bool{}
	var got []string
	for {
		a, err := b.free(used)
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
	if a, _ := b.free(used); a.String() != "10.0.0.2" {
		t.Errorf("after the last one: %s", a)
	}
	if p := next(netip.MustParsePrefix("10.0.255.0/24")); p.String() != "10.1.0.0/24" {
		t.Errorf("next: %s", p)
	}
}
