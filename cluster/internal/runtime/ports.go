package runtime

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// checkPorts returns an error if a Pod requires a port of the node that another Pod already uses. If a Pod has no
// separate network, all its ports are ports of the node. r.mu must be held.
func (r *Runtime) checkPorts(s *sandbox) error {
	for _, other := range r.sandboxes {
		if other.Stopped {
			continue
		}
		for _, wanted := range hostPorts(s) {
			if !slices.ContainsFunc(hostPorts(other), wanted.conflicts) {
				continue
			}
			reason := ""
			if s.Namespaces&unix.CLONE_NEWNET == 0 {
				reason = ": pods without a separate network share the node's address"
			}
			return fmt.Errorf("port %d/%s of the node is in use by pod %s%s", wanted.number, wanted.protocol,
				other.name(), reason)
		}
	}
	return nil
}

// port is a port of the node. The zero value of ip means all addresses of the node.
type port struct {
	protocol v1.Protocol
	number   int32
	ip       netip.Addr
}

// conflicts reports whether two Pods cannot have the ports p and o at the same time.
func (p port) conflicts(o port) bool {
	everywhere := netip.Addr{}
	return p.protocol == o.protocol && p.number == o.number &&
		(p.ip == o.ip || p.ip == everywhere || o.ip == everywhere)
}

// hostPorts returns the ports of the node that a Pod uses.
func hostPorts(s *sandbox) (list []port) {
	for _, p := range s.Config.GetPortMappings() {
		ip, _ := netip.ParseAddr(p.GetHostIp())
		if ip.IsUnspecified() {
			ip = netip.Addr{}
		}
		if p.GetHostPort() != 0 {
			list = append(list, port{p.GetProtocol(), p.GetHostPort(), ip})
		}
		if s.Namespaces&unix.CLONE_NEWNET == 0 && p.GetContainerPort() != p.GetHostPort() {
			list = append(list, port{p.GetProtocol(), p.GetContainerPort(), netip.Addr{}})
		}
	}
	return list
}
