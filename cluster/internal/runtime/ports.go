package runtime

import (
	"fmt"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// portsFree says which port of the node a pod wants that another one has. Where pods have no network of their own, all
// of their ports are the node's. Called under mu.
func (r *Runtime) portsFree(s *sandbox) error {
	wanted := ports(s)
	for _, other := range r.sandboxes {
		if other.Stopped {
			continue
		}
		for port := range ports(other) {
			if wanted[port] && s.Spaces&unix.CLONE_NEWNET == 0 {
				return fmt.Errorf("port %d/%s of the node is taken by pod %s: pods without a network of their own share the node's address", port.number, port.protocol, other.name())
			}
			if wanted[port] {
				return fmt.Errorf("port %d/%s of the node is taken by pod %s", port.number, port.protocol, other.name())
			}
		}
	}
	return nil
}

type port struct {
	protocol v1.Protocol
	number   int32
}

// ports are those of the node that a pod takes.
func ports(s *sandbox) map[port]bool {
	taken := map[port]bool{}
	for _, p := range s.Config.GetPortMappings() {
		if p.GetHostPort() != 0 {
			taken[port{p.GetProtocol(), p.GetHostPort()}] = true
		}
		if s.Spaces&unix.CLONE_NEWNET == 0 {
			taken[port{p.GetProtocol(), p.GetContainerPort()}] = true
		}
	}
	return taken
}
