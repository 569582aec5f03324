package server

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// identifiers holds the destinations that an agent serves, from its header agentIdentifiers.
type identifiers struct {
	hosts        map[string]bool // hosts that the agent serves, as canonical names and addresses
	defaultRoute bool            // the agent serves destinations that no other agent serves
}

// parseIdentifiers parses a query such as host=a.example&ipv4=192.0.2.1&default-route=true. It ignores unknown
// keys, which later versions may define. Like the reference server, it also ignores cidr, because no strategy uses
// it. If default-route is repeated, the first value counts.
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

// canonical returns the canonical form of an IP address or DNS name.
func canonical(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String()
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}
