package node

import (
	"errors"
	"net"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// GlobalAddress is this host's on the way out, or else the first that others may reach it at: what validation allows for Pods,
// Endpoints and nodes, which loopback is not.
func GlobalAddress() (net.IP, error) {
	if ip, err := utilnet.ChooseHostInterface(); err == nil {
		return ip, nil
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return n.IP, nil
		}
	}
	return nil, errors.New("this host has no address besides loopback, at which Pods and nodes cannot be: give it one, on an interface of type dummy for instance")
}

// freePort is one that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
