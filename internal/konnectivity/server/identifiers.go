package server

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Identifiers are what an agent says of the destinations that it is for, in its header agentIdentifiers.
type Identifiers struct {
	IPv4, IPv6, Host []string // that it is, or is near to
	CIDR             []string // no strategy goes by them, as in the reference
	DefaultRoute     bool     // it takes what no other agent is for
}

// ParseIdentifiers reads a query such as host=a.example&ipv4=192.0.2.1&default-route=true. Types that are not known are those
// of later agents, and ignored. Of several default-route the first counts.
func ParseIdentifiers(query string) (i Identifiers, err error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return i, fmt.Errorf("agentIdentifiers: %w (want a query such as host=a.example&ipv4=192.0.2.1)", err)
	}
	i = Identifiers{IPv4: values["ipv4"], IPv6: values["ipv6"], Host: values["host"], CIDR: values["cidr"]}
	i.DefaultRoute, _ = strconv.ParseBool(values.Get("default-route"))
	return i, nil
}

// hosts are the destinations that the agent is for, each once and in one form.
func (i Identifiers) hosts() map[string]bool {
	all := map[string]bool{}
	for _, host := range slices.Concat(i.IPv4, i.IPv6, i.Host) {
		all[canonical(host)] = true
	}
	return all
}

// canonical is the one form of an IP address or of a name.
func canonical(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String()
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}
