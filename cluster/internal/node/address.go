package node

import (
	"errors"
	"net"
	"os"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// GlobalAddress returns the address of this host on the default route. Without a default route, it returns the first
// global address of this host. API validation rejects loopback addresses for Pods, Endpoints and nodes.
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
	return nil, errors.New("this host has only loopback addresses, but nodes and Pods need another address: " +
		"add an address to the host, for example on an interface of type dummy")
}

// nameservers returns the name servers of the host, which the Pods also use. They cannot resolve names of the cluster.
// But without name servers, the kubelet would log a warning for each Pod.
func nameservers(file string) (all []string) {
	data, _ := os.ReadFile(file) // the file is optional
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
			all = append(all, f[1])
		}
	}
	return all
}

// freePort returns a TCP port that is not in use.
func freePort() (int, error) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
