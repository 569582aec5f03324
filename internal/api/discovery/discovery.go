// Package discovery answers /api and /apis from the Catalog: groups, versions,
// resource lists and aggregated discovery. It knows no objects and no storage.
package discovery

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// Handler serves the discovery documents of live: /api, /api/v1, /apis,
// /apis/GROUP and /apis/GROUP/VERSION, each as JSON, YAML or protobuf, and at /api and
// /apis also aggregated discovery (KEP-3352). What is unknown gets the plain 404 that
// kube-apiserver sends there. Documents are made when they are first asked for after
// a change, and only those of the groups that changed. theirs returns what is known of the resources that another server serves, nil if
// nothing is: the same pointer until it changes.
func Handler(live *resource.Live, theirs Theirs) http.Handler {
	return &handler{live: live, theirs: theirs}
}

// Theirs tells of the resources of a group version that another server serves.
type Theirs func(*resource.APIService) *apidiscoveryv2.APIVersionDiscovery

type handler struct {
	live   *resource.Live
	theirs Theirs

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
		http.NotFound(w, r)
	case len(parts) == 3 && parts[0] == "apis" && parts[1] != "":
		serveVersion(w, r, docs.groups.Find(parts[1]), parts[2])
	default:
		http.NotFound(w, r)
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
			ServerAddressByClientCIDRs: serverAddress(r),
		}, "")
	default:
		serve(w, r, docs.groupList(), "v1")
	}
}

// serverAddress tells every client to keep to the address it came to.
func serverAddress(r *http.Request) []metav1.ServerAddressByClientCIDR {
	address := r.Host
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		address = a.String()
	}
	return []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: address}}
}

// serveVersion answers /api/v1 and /apis/GROUP/VERSION.
func serveVersion(w http.ResponseWriter, r *http.Request, g *group, version string) {
	if g == nil || !slices.Contains(g.source.Versions, version) {
		http.NotFound(w, r)
		return
	}
	list := g.resourceList(version)
	if g.source.Name == "" {
		serve(w, r, list, "") // without an apiVersion, as since Kubernetes 1.1
		return
	}
	serve(w, r, list, "v1")
}
