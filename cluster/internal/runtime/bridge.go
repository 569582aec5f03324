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

// bridge is the network of a node's pods: a switch in the kernel, with the node's address on it. It outlives the
// runtime, as pods do.
type bridge struct {
	Name   string
	Subnet netip.Prefix

	last netip.Addr // that a pod was given: the next one is looked for from there, so that none is used again at once
}

const bridgeFile = "bridge.json"

// openBridge makes the bridge of a runtime, in a /24 that nothing on this machine has, or finds it again. When the machine
// has started anew it is gone, and its name and range may be another's: so a bridge says whose it is.
func openBridge(root string, all netip.Prefix) (*bridge, error) {
	file := filepath.Join(root, bridgeFile)
	b := &bridge{}
	if process.ReadFile(file, b) == nil {
		if link, err := netlink.LinkByName(b.Name); err == nil && link.Attrs().Alias == root {
			return b, b.setUp(link)
		}
	}
	taken, err := netlink.AddrList(nil, unix.AF_INET)
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	subnet := netip.PrefixFrom(all.Masked().Addr(), max(24, all.Bits()))
	for n := 0; all.Contains(subnet.Addr()); n++ {
		*b = bridge{Name: fmt.Sprintf("%s%d", name, n), Subnet: subnet}
		free := true
		for _, a := range taken {
			ip, _ := netip.AddrFromSlice(a.IP.To4())
			free = free && !subnet.Contains(ip)
		}
		if free {
			err := b.make(root)
			if err == nil {
				return b, process.WriteFile(file, b)
			}
			if !errors.Is(err, unix.EEXIST) {
				_ = netlink.LinkDel(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: b.Name}}) // what there is of it
				return nil, err
			}
		}
		if subnet = next(subnet); !subnet.IsValid() {
			break
		}
	}
	return nil, fmt.Errorf("all of %s is in use on this machine", all)
}

// next is the range of the same size after one.
func next(p netip.Prefix) netip.Prefix {
	a := p.Addr().As4()
	n := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	if n += 1 << (32 - p.Bits()); n == 0 {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), p.Bits())
}

func (b *bridge) gateway() netip.Addr { return b.Subnet.Addr().Next() }

func (b *bridge) make(owner string) error {
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

func (b *bridge) setUp(link netlink.Link) error {
	address, err := netlink.ParseAddr(netip.PrefixFrom(b.gateway(), b.Subnet.Bits()).String())
	if err != nil {
		return err
	}
	if err := netlink.AddrReplace(link, address); err != nil {
		return fmt.Errorf("giving the bridge %s its address %s: %w", b.Name, address, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) // pods of other nodes on this machine
}

// free finds an address for a pod.
func (b *bridge) free(used map[string]bool) (netip.Addr, error) {
	if !b.last.IsValid() {
		b.last = b.gateway()
	}
	a := b.last
	for range 1 << (32 - b.Subnet.Bits()) {
		if a = a.Next(); !b.Subnet.Contains(a.Next()) { // the last one is the broadcast address
			a = b.gateway().Next()
		}
		if !used[a.String()] {
			b.last = a
			return a, nil
		}
	}
	return a, fmt.Errorf("all addresses of %s are taken", b.Subnet)
}

func cable(id string) string { return "trl" + id[:10] }

// connect lays a cable from the bridge to a pod.
func (b *bridge) connect(id string, holder process.ID, address string) error {
	if err := b.plug(id, holder, address); err != nil {
		return fmt.Errorf("connecting a pod to the bridge %s: %w", b.Name, err)
	}
	return nil
}

func (b *bridge) plug(id string, holder process.ID, address string) error {
	here, err := netlink.LinkByName(b.Name)
	if err != nil {
		return err
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MasterIndex = cable(id), here.Attrs().Index
	veth := &netlink.Veth{LinkAttrs: attributes, PeerName: "eth0", PeerNamespace: netlink.NsPid(holder.PID)}
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	if err := netlink.LinkSetHairpin(veth, true); err != nil { // a Pod that calls its own Service
		return err
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return err
	}
	space, err := netns.GetFromPid(holder.PID)
	if err != nil {
		return err
	}
	defer space.Close()
	pod, err := netlink.NewHandleAt(space)
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

// disconnect takes the cable away. It would go with the pod's namespace, but some time later.
func (b *bridge) disconnect(id string) {
	if b == nil {
		return
	}
	if link, err := netlink.LinkByName(cable(id)); err == nil {
		netlink.LinkDel(link)
	}
}
