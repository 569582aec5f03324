package specialip

import (
	"net/netip"
	"strconv"
	"strings"
)

// Parse returns the address that a host represents: an IP address in any notation that the C function inet_aton
// accepts, or a name with a fixed meaning. It returns false for other names, which require a DNS lookup.
func Parse(host string) (addr netip.Addr, ok bool) {
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr, true
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	switch {
	case name == "":
		return netip.IPv4Unspecified(), true // the net package connects to the local machine in this case
	case name == "localhost" || strings.HasSuffix(name, ".localhost"): // RFC 6761
		return loopback, true
	}
	switch name {
	case "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback":
		return loopback, true
	case "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal":
		return metadata, true
	}
	return parseIPv4(name)
}

var (
	loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	metadata = netip.AddrFrom4([4]byte{169, 254, 169, 254})
)

// parseIPv4 parses up to four parts. Each is decimal, octal with the prefix "0", or hexadecimal with the prefix "0x".
// The last part fills the remaining octets.
func parseIPv4(text string) (addr netip.Addr, ok bool) {
	parts := strings.Split(text, ".")
	if len(parts) > 4 {
		return addr, false
	}
	var value uint64
	for i, part := range parts {
		bits := 8
		if i == len(parts)-1 {
			bits = 8 * (4 - i)
		}
		number, err := strconv.ParseUint(base(part), 0, bits)
		if err != nil || strings.ContainsRune(part, '_') {
			return addr, false
		}
		value = value<<bits | number
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), true
}

// base returns part, or "" if part has a prefix that ParseUint accepts and C does not.
func base(part string) string {
	if len(part) > 1 && part[0] == '0' && (part[1] == 'b' || part[1] == 'o') {
		return ""
	}
	return part
}
