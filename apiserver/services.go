package apiserver

import (
	"context"
	"iter"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/server/egressselector"

	"github.com/trellis-k8s/trellis/apiserver/endpoints"
	apidiscovery "github.com/trellis-k8s/trellis/internal/api/discovery"
	"github.com/trellis-k8s/trellis/internal/controllers/bootstrap"
	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/kinds/services"
)

// services returns functions that read Services and EndpointSlices from the store. They are used to resolve Services.
// Built-in kinds are stored in the version in which they are served.
func (s *Server) services() egress.Objects {
	return egress.Objects{
		Get: func(resource, namespace, name string) []byte {
			rec := s.store.Head().Get(s.definition("", resource).Key(namespace, name))
			if rec == nil {
				return nil
			}
			return rec.Value
		},
		Slices: func(namespace, service string) iter.Seq[[]byte] {
			prefix := s.definition("discovery.k8s.io", "endpointslices").Key(namespace, "")
			return func(yield func([]byte) bool) {
				for rec := range s.store.Head().Walk(prefix, "") {
					if egress.HasSlice(service, rec.Value) && !yield(rec.Value) {
						return
					}
				}
			}
		},
	}
}

// dialer returns the dialer of all connections that the server opens.
func (s *Server) dialer() *egress.Dialer {
	services := s.services()
	return &egress.Dialer{
		Cluster:      s.egressSelector.Dialer(egressselector.Cluster),
		ControlPlane: s.egressSelector.Dialer(egressselector.ControlPlane),
		Resolve:      egress.Resolver(services),
		IsLocal: func(namespace, name string) bool {
			return slices.Contains(s.config.LocalServices, namespace+"/"+name) &&
				services.IsExternalName(namespace, name)
		},
		Generation: egress.Generations(s.store.Head, func(group, plural, namespace, name string) string {
			return s.definition(group, plural).Key(namespace, name)
		}),
		Proxy:   http.ProxyFromEnvironment,
		Metrics: egress.NewMetrics(),
		Self:    transport(s.callLoopback),
	}
}

// repairInterval is the interval of the Service IP repair controller, as in kube-apiserver.
const repairInterval = 3 * time.Minute

// repairAddresses creates missing IPAddresses of Services and deletes wrong IPAddresses, because clients can delete
// and change them.
func (s *Server) repairAddresses(ctx context.Context) error {
	wrong, missing := services.RepairAddresses(s.store.Head())
	if len(wrong)+len(missing) == 0 {
		return nil
	}
	s.config.Logger.Warn("repairing IPAddresses that do not match the Services", "wrong", len(wrong), "missing",
		len(missing))
	return bootstrap.RepairAddresses(ctx, s.client.NetworkingV1(), wrong, missing)
}

// discoveryAddresses returns the server addresses that discovery reports, as kube-apiserver does. All clients get the
// advertised address, or the listening address if no other machine can reach the server. Clients with an IP address in
// the Service range also get the address of the Service kubernetes.
func (s *Server) discoveryAddresses() apidiscovery.Addresses {
	address, ips := strings.TrimPrefix(s.URL(), "https://"), s.config.ServiceClusterIPRanges[0]
	if ip := s.advertisedIP(); ip != nil {
		address = net.JoinHostPort(ip.String(), strconv.Itoa(s.listener.Addr().(*net.TCPAddr).Port))
	}
	return apidiscovery.Addresses{
		Default: address,
		Range:   ips, InRange: net.JoinHostPort(services.ServerIP(ips), strconv.Itoa(endpoints.ServicePort)),
	}
}

// advertisedIP returns the address at which other machines reach the server, or nil if they cannot.
func (s *Server) advertisedIP() net.IP {
	ip := s.listener.Addr().(*net.TCPAddr).IP
	if given := s.config.AdvertiseAddress; given != nil && !given.IsUnspecified() {
		ip = given
	}
	if !ip.IsUnspecified() {
		if ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			return nil
		}
		return ip
	}
	addresses, _ := net.InterfaceAddrs() // if this fails, the server has no address to advertise
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP
		}
	}
	return nil
}
