// Package discovery serves /api and /apis from the Catalog: groups, versions, resource lists and aggregated
// discovery. It must not import storage, and does not read objects.
package discovery

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// Handler returns a handler for the discovery documents of live: /api, /api/v1, /apis, /apis/GROUP and
// /apis/GROUP/VERSION, each as JSON, YAML or protobuf. /api and /apis are also served as aggregated discovery
// (KEP-3352). The response to an unknown path is a Status with a text media type. kube-apiserver writes a line of
// text instead.
//
// Documents are built on the first request after a change. Only the documents of changed groups are built again.
// aggregated returns the resources of a group version that another server serves. It returns nil if the resources
// are unknown, and the same pointer until they change. addresses are published at /api.
func Handler(live *catalog.Live, aggregated Aggregated, addresses Addresses) http.Handler {
	return &handler{live: live, aggregated: aggregated, addresses: addresses}
}

// Aggregated returns the resources of a group version that another server serves, or nil if they are unknown.
type Aggregated func(*catalog.APIService) *apidiscoveryv2.APIVersionDiscovery

// Addresses holds the addresses of the server, each as host:port. Default is for all clients. InRange is for
// clients with an IP address in Range.
type Addresses struct {
	Default string
	Range   netip.Prefix
	InRange string
}

func (a Addresses) forClient(client net.IP) []metav1.ServerAddressByClientCIDR {
	addresses := []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: a.Default}}
	if ip, ok := netip.AddrFromSlice(client); ok && a.Range.Contains(ip.Unmap()) {
		addresses = append(addresses, metav1.ServerAddressByClientCIDR{
			ClientCIDR: a.Range.String(), ServerAddress: a.InRange,
		})
	}
	return addresses
}

type handler struct {
	live       *catalog.Live
	aggregated Aggregated
	addresses  Addresses

	mu   sync.Mutex
	last *documents
}

// documents returns the documents of the current catalog. It reuses the documents of unchanged groups.
func (h *handler) documents(ctx context.Context) (*documents, error) {
	catalog, err := h.live.Current(ctx)
	if err != nil {
		return nil, fmt.Errorf("wait for the latest catalog: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil || h.last.groups.Catalog != catalog {
		h.last = newDocuments(catalog, h.last, h.aggregated)
	}
	return h.last, nil
}

// ServeHTTP serves one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET")
		http.Error(w, "405: Method Not Allowed", http.StatusMethodNotAllowed)
		return
	}
	docs, err := h.documents(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	parts := strings.Split(strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/"), "/"), "/")
	switch {
	case len(parts) == 1 && (parts[0] == "api" || parts[0] == "apis"):
		h.serveRoot(w, r, docs, parts[0] == "api")
	case len(parts) == 2 && parts[0] == "api":
		serveVersion(w, r, docs.groups.Find(""), parts[1])
	case len(parts) == 2 && parts[0] == "apis" && parts[1] != "":
		if g := docs.groups.Find(parts[1]); g != nil {
			group := g.apiGroup()
			serve(w, r, &group, "v1")
			return
		}
		serveNotFound(w)
	case len(parts) == 3 && parts[0] == "apis" && parts[1] != "":
		serveVersion(w, r, docs.groups.Find(parts[1]), parts[2])
	default:
		serveNotFound(w)
	}
}

// serveRoot serves /api and /apis, as aggregated discovery if the client prefers it.
func (h *handler) serveRoot(w http.ResponseWriter, r *http.Request, docs *documents, legacy bool) {
	form, ok := negotiateAggregated(r)
	switch {
	case ok:
		docs.serveAggregated(w, r, form, legacy)
	case legacy:
		// The document has no apiVersion since Kubernetes 1.1.
		serve(w, r, &metav1.APIVersions{
			Versions:                   docs.coreVersions(),
			ServerAddressByClientCIDRs: h.addresses.forClient(utilnet.GetClientIP(r)),
		}, "")
	default:
		serve(w, r, docs.groupList(), "v1")
	}
}

// serveVersion serves /api/v1 and /apis/GROUP/VERSION.
func serveVersion(w http.ResponseWriter, r *http.Request, g *group, version string) {
	if g == nil || !slices.Contains(g.source.Versions, version) {
		serveNotFound(w)
		return
	}
	list := g.resourceList(version)
	if g.source.Name == "" {
		serve(w, r, list, "") // the document has no apiVersion since Kubernetes 1.1
		return
	}
	serve(w, r, list, "v1")
}
