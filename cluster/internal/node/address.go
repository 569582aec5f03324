package node

import (
	"errors"
	"net"
	"os"
	"strings"

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

// nameservers are the host's: what Pods ask for names of the cluster as well, which nobody answers. Without any the kubelet
// would warn of each Pod.
func nameservers(file string) (all []string) {
	data, _ := os.ReadFile(file) // a host may do without
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
			all = append(all, f[1])
		}
	}
	return all
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
