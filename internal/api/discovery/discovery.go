// Package discovery answers /api and /apis from the Catalog: groups, versions,
// resource lists and aggregated discovery. It knows no objects and no storage.
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

	"github.com/trellis-k8s/trellis/internal/resource"
)

// Handler serves the discovery documents of live: /api, /api/v1, /apis,
// /apis/GROUP and /apis/GROUP/VERSION, each as JSON, YAML or protobuf, and at /api and
// /apis also aggregated discovery (KEP-3352). What is unknown gets a Status sent as text,
// where kube-apiserver sends a line of text. Documents are made when they are first asked for after
// a change, and only those of the groups that changed. theirs returns what is known of the resources that another server serves, nil if
// nothing is: the same pointer until it changes. /api says by addresses where the server is.
func Handler(live *resource.Live, theirs Aggregated, addresses Addresses) http.Handler {
	return &handler{live: live, theirs: theirs, addresses: addresses}
}

// Aggregated tells of the resources of a group version that another server serves.
type Aggregated func(*resource.APIService) *apidiscoveryv2.APIVersionDiscovery

// Addresses are where the server is, each a host with its port: one for everybody, and one more for clients in a range of IP addresses.
type Addresses struct {
	Default string
	Range   netip.Prefix
	InRange string
}

func (a Addresses) toldTo(client net.IP) []metav1.ServerAddressByClientCIDR {
	told := []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: a.Default}}
	if ip, ok := netip.AddrFromSlice(client); ok && a.Range.Contains(ip.Unmap()) {
		told = append(told, metav1.ServerAddressByClientCIDR{ClientCIDR: a.Range.String(), ServerAddress: a.InRange})
	}
	return told
}

type handler struct {
	live      *resource.Live
	theirs    Aggregated
	addresses Addresses

	mu   sync.Mutex
	last *documents
}

// documents returns those of now, made of the last ones where a group did not change.
func (h *handler) documents(ctx context.Context) (*documents, error) {
	catalog, err := h.live.Current(ctx)
	if err != nil {
		return nil, fmt.Errorf("wait for the newest kinds: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil || h.last.groups.Catalog != catalog {
		h.last = newDocuments(catalog, h.last, h.theirs)
	}
	return h.last, nil
}

// ServeHTTP answers one request.
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
		notServed(w)
	case len(parts) == 3 && parts[0] == "apis" && parts[1] != "":
		serveVersion(w, r, docs.groups.Find(parts[1]), parts[2])
	default:
		notServed(w)
	}
}

// serveRoot answers /api and /apis, aggregated where the client prefers that.
func (h *handler) serveRoot(w http.ResponseWriter, r *http.Request, docs *documents, legacy bool) {
	form, aggregated := wantsAggregated(r)
	switch {
	case aggregated:
		docs.serveAggregated(w, r, form, legacy)
	case legacy:
		// Without an apiVersion, as since Kubernetes 1.1.
		serve(w, r, &metav1.APIVersions{
			Versions:                   docs.legacyVersions(),
			ServerAddressByClientCIDRs: h.addresses.toldTo(utilnet.GetClientIP(r)),
		}, "")
	default:
		serve(w, r, docs.groupList(), "v1")
	}
}

// serveVersion answers /api/v1 and /apis/GROUP/VERSION.
func serveVersion(w http.ResponseWriter, r *http.Request, g *group, version string) {
	if g == nil || !slices.Contains(g.source.Versions, version) {
		notServed(w)
		return
	}
	list := g.resourceList(version)
	if g.source.Name == "" {
		serve(w, r, list, "") // without an apiVersion, as since Kubernetes 1.1
		return
	}
	serve(w, r, list, "v1")
}
