package server

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// identifiers are what an agent says of the destinations that it is for, in its header agentIdentifiers.
type identifiers struct {
	hosts        map[string]bool // that it is, or is near to, each in one form
	defaultRoute bool            // it takes what no other agent is for
}

// parseIdentifiers reads a query such as host=a.example&ipv4=192.0.2.1&default-route=true. Types that are not known are those
// of later agents, and ignored; so is cidr, by which no strategy goes, as in the reference. Of several default-route the first counts.
func parseIdentifiers(query string) (i identifiers, err error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return i, fmt.Errorf("agentIdentifiers: %w (want a query such as host=a.example&ipv4=192.0.2.1)", err)
	}
	i.hosts = map[string]bool{}
	for _, host := range slices.Concat(values["ipv4"], values["ipv6"], values["host"]) {
		i.hosts[canonical(host)] = true
	}
	i.defaultRoute, _ = strconv.ParseBool(values.Get("default-route"))
	return i, nil
}

// canonical is the one form of an IP address or of a name.
func canonical(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String()
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}
