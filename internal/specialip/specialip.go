// Package specialip recognizes addresses of the local machine, its link and cloud metadata services. It recognizes
// every spelling. It must not import other packages of this module.
package specialip

import (
	"fmt"
	"net/netip"
)

// Check returns an error if addr is not an ordinary unicast address. It rejects loopback, link-local, multicast,
// unspecified and broadcast addresses, addresses of metadata services, and IPv6 addresses that embed one of these.
func Check(addr netip.Addr) error {
	if why := reason(addr); why != "" {
		return fmt.Errorf("cannot connect to %s: it is %s", addr, why)
	}
	for _, embedded := range embeddedIn(addr) {
		if why := reason(embedded); why != "" {
			return fmt.Errorf("cannot connect to %s: it embeds %s, which is %s", addr, embedded, why)
		}
	}
	return nil
}

// reason returns why an address is special, or "". It does not consider embedded addresses.
func reason(addr netip.Addr) string {
	addr = addr.Unmap().WithZone("")
	switch {
	case addr.IsLoopback():
		return "a loopback address"
	case thisNetwork.Contains(addr) || addr.IsUnspecified():
		return "an unspecified address"
	case addr.IsLinkLocalUnicast():
		return "a link-local address"
	case addr.IsMulticast():
		return "a multicast address"
	case !addr.IsGlobalUnicast():
		return "not a unicast address"
	case isMetadata(addr):
		return "the address of a cloud's metadata service"
	}
	return ""
}

// thisNetwork is the network of 0.0.0.0, which Linux routes to the machine itself or its link.
var thisNetwork = netip.MustParsePrefix("0.0.0.0/8")

// isMetadata reports whether addr is the address of a metadata service outside the link-local range.
func isMetadata(addr netip.Addr) bool {
	switch addr.String() {
	case "100.100.100.200", // Alibaba Cloud
		"168.63.129.16",      // Azure
		"192.0.0.192",        // Oracle Cloud
		"fd00:c1::a9fe:a9fe", // Oracle Cloud
		"fd00:ec2::254",      // AWS
		"fd20:ce::254",       // Google Cloud
		"fd00:42::42":        // Scaleway
		return true
	}
	return false
}

// embeddedIn returns the IPv4 addresses that an IPv6 address embeds. Such addresses are used for translation and
// tunnels.
func embeddedIn(addr netip.Addr) (all []netip.Addr) {
	addr = addr.WithZone("")
	if !addr.Is6() || addr.Is4In6() {
		return nil // an IPv4-mapped address is an IPv4 address, see reason
	}
	b := addr.As16()
	add := func(octets ...int) {
		all = append(all, netip.AddrFrom4([4]byte{b[octets[0]], b[octets[1]], b[octets[2]], b[octets[3]]}))
	}
	for _, form := range lastFour {
		if form.Contains(addr) {
			add(12, 13, 14, 15)
		}
	}
	switch {
	case localNAT64.Contains(addr): // the prefix length is unknown, and RFC 6052 skips octet 8
		add(6, 7, 9, 10)
		add(7, 9, 10, 11)
		add(9, 10, 11, 12)
		add(12, 13, 14, 15)
	case sixToFour.Contains(addr):
		add(2, 3, 4, 5)
	case teredo.Contains(addr):
		add(4, 5, 6, 7)
		all = append(all, netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}))
	}
	if b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe { // ISATAP, RFC 5214
		add(12, 13, 14, 15)
	}
	return all
}

var (
	// lastFour lists the prefixes of addresses whose last four octets are an IPv4 address.
	lastFour = []netip.Prefix{
		netip.MustParsePrefix("::/96"),           // IPv4-compatible, RFC 4291
		netip.MustParsePrefix("::ffff:0:0:0/96"), // IPv4-translated, RFC 2765
		netip.MustParsePrefix("64:ff9b::/96"),    // NAT64, RFC 6052
	}
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48") // RFC 8215
	sixToFour  = netip.MustParsePrefix("2002::/16")      // RFC 3056
	teredo     = netip.MustParsePrefix("2001::/32")      // RFC 4380
)
