package runtime

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// portsFree says which port of the node a pod wants that another one has. Where pods have no network of their own, all
// of their ports are the node's. Called under mu.
func (r *Runtime) portsFree(s *sandbox) error {
	for _, other := range r.sandboxes {
		if other.Stopped {
			continue
		}
		for _, wanted := range ports(s) {
			if !slices.ContainsFunc(ports(other), wanted.clashes) {
				continue
			}
			why := ""
			if s.Spaces&unix.CLONE_NEWNET == 0 {
				why = ": pods without a network of their own share the node's address"
			}
			return fmt.Errorf("port %d/%s of the node is taken by pod %s%s", wanted.number, wanted.protocol, other.name(), why)
		}
	}
	return nil
}

// port is one of the node, at one of its addresses or, with the zero address, at all.
type port struct {
	protocol v1.Protocol
	number   int32
	at       netip.Addr
}

func (p port) clashes(o port) bool {
	everywhere := netip.Addr{}
	return p.protocol == o.protocol && p.number == o.number && (p.at == o.at || p.at == everywhere || o.at == everywhere)
}

// ports are those of the node that a pod takes.
func ports(s *sandbox) (taken []port) {
	for _, p := range s.Config.GetPortMappings() {
		at, _ := netip.ParseAddr(p.GetHostIp())
		if at.IsUnspecified() {
			at = netip.Addr{}
		}
		if p.GetHostPort() != 0 {
			taken = append(taken, port{p.GetProtocol(), p.GetHostPort(), at})
		}
		if s.Spaces&unix.CLONE_NEWNET == 0 && p.GetContainerPort() != p.GetHostPort() {
			taken = append(taken, port{p.GetProtocol(), p.GetContainerPort(), netip.Addr{}})
		}
	}
	return taken
}
