package runtime

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/trellis-k8s/trellis/cluster/internal/runtime/process"
)

// bridge is the network bridge of a node's Pods. It has the gateway address of the Pods. Like the Pods, it remains
// after the runtime ends.
type bridge struct {
	Name   string
	Subnet netip.Prefix

	last netip.Addr // last allocated address. The search continues after it, so that addresses are not reused at once
}

const bridgeFile = "bridge.json"

// openBridge returns the bridge of the runtime in root. If the bridge does not exist, openBridge creates it with a /24
// range in podCIDR. This range contains no address of the machine. After a reboot, another runtime may use the same
// name and range. So the alias of each bridge is the folder of its runtime.
func openBridge(root string, podCIDR netip.Prefix) (*bridge, error) {
	file := filepath.Join(root, bridgeFile)
	b := &bridge{}
	if process.ReadFile(file, b) == nil {
		if link, err := netlink.LinkByName(b.Name); err == nil && link.Attrs().Alias == root {
			return b, b.setUp(link)
		}
	}
	addresses, err := netlink.AddrList(nil, unix.AF_INET)
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	subnet := netip.PrefixFrom(podCIDR.Masked().Addr(), max(24, podCIDR.Bits()))
	for i := 0; podCIDR.Contains(subnet.Addr()); i++ {
		*b = bridge{Name: fmt.Sprintf("%s%d", name, i), Subnet: subnet}
		free := true
		for _, a := range addresses {
			ip, _ := netip.AddrFromSlice(a.IP.To4())
			free = free && !subnet.Contains(ip)
		}
		if free {
			err := b.create(root)
			if err == nil {
				return b, process.WriteFile(file, b)
			}
			if !errors.Is(err, unix.EEXIST) {
				// remove an incomplete bridge
				_ = netlink.LinkDel(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: b.Name}})
				return nil, err
			}
		}
		if subnet = nextSubnet(subnet); !subnet.IsValid() {
			break
		}
	}
	return nil, fmt.Errorf("no free address range for a bridge: all ranges in %s are in use on this machine", podCIDR)
}

// nextSubnet returns the range after p, which has the same size. At the end of the address space, it returns an
// invalid prefix.
func nextSubnet(p netip.Prefix) netip.Prefix {
	a := p.Addr().As4()
	n := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	if n += 1 << (32 - p.Bits()); n == 0 {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), p.Bits())
}

func (b *bridge) gateway() netip.Addr { return b.Subnet.Addr().Next() }

// create creates the bridge with the alias owner.
func (b *bridge) create(owner string) error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = b.Name
	link := &netlink.Bridge{LinkAttrs: attributes}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("making the bridge %s: %w", b.Name, err)
	}
	if err := netlink.LinkSetAlias(link, owner); err != nil {
		return fmt.Errorf("marking the bridge %s: %w", b.Name, err)
	}
	return b.setUp(link)
}

// setUp sets the address of the bridge, and enables it and IP forwarding.
func (b *bridge) setUp(link netlink.Link) error {
	address, err := netlink.ParseAddr(netip.PrefixFrom(b.gateway(), b.Subnet.Bits()).String())
	if err != nil {
		return err
	}
	if err := netlink.AddrReplace(link, address); err != nil {
		return fmt.Errorf("setting the address %s of the bridge %s: %w", address, b.Name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	// Pods can reach the Pods of other nodes on this machine only with IP forwarding.
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}

// allocate returns a free address of the bridge. The map used contains the addresses that are not free.
func (b *bridge) allocate(used map[string]bool) (netip.Addr, error) {
	if !b.last.IsValid() {
		b.last = b.gateway()
	}
	a := b.last
	for range 1 << (32 - b.Subnet.Bits()) {
		if a = a.Next(); !b.Subnet.Contains(a.Next()) { // the last address is the broadcast address
			a = b.gateway().Next()
		}
		if !used[a.String()] {
			b.last = a
			return a, nil
		}
	}
	return a, fmt.Errorf("no free address for a pod: all addresses of %s are in use", b.Subnet)
}

// vethName returns the name of the node's end of a Pod's veth pair.
func vethName(id string) string { return "trl" + id[:10] }

// connect connects a Pod to the bridge. The process pause holds the namespaces of the Pod.
func (b *bridge) connect(id string, pause process.ID, address string) error {
	if err := b.addVeth(id, pause, address); err != nil {
		return fmt.Errorf("connecting a pod to the bridge %s: %w", b.Name, err)
	}
	return nil
}

// addVeth adds a veth pair between the bridge and the Pod, and configures the network of the Pod.
func (b *bridge) addVeth(id string, pause process.ID, address string) error {
	bridgeLink, err := netlink.LinkByName(b.Name)
	if err != nil {
		return err
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MasterIndex = vethName(id), bridgeLink.Attrs().Index
	veth := &netlink.Veth{LinkAttrs: attributes, PeerName: "eth0", PeerNamespace: netlink.NsPid(pause.PID)}
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	if err := netlink.LinkSetHairpin(veth, true); err != nil { // lets a Pod reach itself through its Service
		return err
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return err
	}
	podNamespace, err := netns.GetFromPid(pause.PID)
	if err != nil {
		return err
	}
	defer podNamespace.Close()
	pod, err := netlink.NewHandleAt(podNamespace)
	if err != nil {
		return err
	}
	defer pod.Close()
	for _, name := range []string{"lo", "eth0"} {
		link, err := pod.LinkByName(name)
		if err != nil {
			return err
		}
		if name == "eth0" {
			ip := &net.IPNet{IP: net.ParseIP(address).To4(), Mask: net.CIDRMask(b.Subnet.Bits(), 32)}
			if err := pod.AddrAdd(link, &netlink.Addr{IPNet: ip}); err != nil {
				return err
			}
		}
		if err := pod.LinkSetUp(link); err != nil {
			return err
		}
	}
	return pod.RouteAdd(&netlink.Route{Gw: net.IP(b.gateway().AsSlice())})
}

// disconnect deletes the Pod's veth pair. The kernel also deletes it with the Pod's namespace, but later.
func (b *bridge) disconnect(id string) {
	if b == nil {
		return
	}
	if link, err := netlink.LinkByName(vethName(id)); err == nil {
		netlink.LinkDel(link)
	}
}
