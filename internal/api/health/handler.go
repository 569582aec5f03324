// Package health serves the paths that do not address a resource: health checks, the version, profiles, and the
// documents of other packages.
package health

import (
	"encoding/json"
	"net/http"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/util/responsewriter"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// Handler serves all paths that do not address a resource.
type Handler struct {
	Discovery     http.Handler            // serves /api, /apis and below
	OpenAPI       http.Handler            // serves /openapi/v2, /openapi/v3 and below
	Issuer        http.Handler            // serves the documents of the service account issuer; nil disables them
	Metrics       http.Handler            // serves /metrics
	Fairness      *flowcontrol.Controller // API Priority and Fairness, or nil
	Live          *catalog.Live
	Livez, Readyz []Check // in addition to ping
	Profiling     bool    // serve /debug/pprof
}

// Serve serves one request.
func (n *Handler) Serve(q *request.Request) {
	w := q.Recorder(nil)
	p, _ := strings.CutSuffix(q.R.URL.Path, "/")
	first, _, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
	issuer := (q.R.URL.Path == access.ConfigurationPath || q.R.URL.Path == access.KeysPath) &&
		n.Issuer != nil
	local, served := n.localVersion(p)
	var dump http.HandlerFunc
	if name, ok := strings.CutPrefix(q.R.URL.Path, "/debug/api_priority_and_fairness/"); ok && n.Fairness != nil {
		dump = n.Fairness.Dump(name) // nil for an unknown name
	}
	switch {
	case q.Invalid || !strings.HasPrefix(q.R.URL.Path, "/"):
		q.Fail(q.NotFound(n.Live.Load()))
	case local && !served:
		q.Fail(request.PageNotFound())
	case q.R.Method != http.MethodGet && (local || issuer || p == "/api" || p == "/version"):
		q.Fail(request.MethodNotAllowed())
	case first == "api" || first == "apis":
		n.Discovery.ServeHTTP(w, q.R)
		auditDocument(q, n.Discovery)
	case first == "openapi":
		n.OpenAPI.ServeHTTP(w, q.R)
	case first == "healthz" || first == "livez" || first == "readyz":
		n.serveHealth(w, q, first)
	case p == "/version":
		serveVersion(w)
	case q.R.URL.Path == "/metrics":
		n.Metrics.ServeHTTP(w, q.R)
	case strings.HasPrefix(p, "/debug/pprof") && n.Profiling:
		serveProfile(w, q.R)
	case dump != nil:
		dump(w, q.R)
	case issuer:
		n.Issuer.ServeHTTP(w, q.R)
	case p == "" || q.R.URL.Path == "/index.html":
		writeJSON(w, metav1.RootPaths{Paths: n.paths()})
	default:
		q.Fail(q.NotFound(n.Live.Load()))
	}
}

// localVersion parses the path of the discovery document of a group version, such as /apis/apps/v1. local reports
// whether the group is built in. served reports whether the group has the version.
func (n *Handler) localVersion(path string) (local, served bool) {
	parts := strings.Split(path, "/")
	switch catalog := n.Live.Load(); {
	case len(parts) == 3 && parts[1] == "api":
		return catalog.LocalGroup("", parts[2])
	case len(parts) == 4 && parts[1] == "apis" && parts[2] != "":
		return catalog.LocalGroup(parts[2], parts[3])
	}
	return false, false
}

// writeJSON writes a document that is not an API object. Like upstream, it indents the JSON.
func writeJSON(w http.ResponseWriter, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_, _ = w.Write(append(body, '\n')) // an error means that the client has disconnected
}

func serveVersion(w http.ResponseWriter) {
	parts := strings.SplitN(strings.TrimPrefix(resource.KubernetesVersion, "v"), ".", 3)
	writeJSON(w, version.Info{
		Major: parts[0], Minor: parts[1], EmulationMajor: parts[0], EmulationMinor: parts[1],
		MinCompatibilityMajor: parts[0], MinCompatibilityMinor: previousMinor(parts[1]),
		GitVersion: resource.KubernetesVersion, GitTreeState: "clean", BuildDate: "1970-01-01T00:00:00Z",
		GoVersion: goruntime.Version(), Compiler: goruntime.Compiler, Platform: goruntime.GOOS + "/" + goruntime.GOARCH,
	})
}

// previousMinor returns the minor version before the given one. It is the oldest version with which this server is
// compatible.
func previousMinor(minor string) string {
	n, err := strconv.Atoi(minor)
	if err != nil {
		return minor
	}
	return strconv.Itoa(n - 1)
}

// paths returns the paths for the index page, sorted.
func (n *Handler) paths() []string {
	all := []string{
		"/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version",
	}
	for g := range n.Live.Load().Groups() {
		if g.Name != "" {
			all = append(all, "/apis/"+g.Name)
		}
		for _, v := range g.Versions {
			if g.Name == "" {
				all = append(all, "/api/"+v)
			} else {
				all = append(all, "/apis/"+g.Name+"/"+v)
			}
		}
	}
	for _, c := range []string{"healthz", "livez", "readyz"} {
		for _, check := range n.checks(c) {
			for _, name := range check.names(c) {
				all = append(all, "/"+c+"/"+name)
			}
		}
	}
	slices.Sort(all)
	return all
}

// acceptJSON replaces the media types of other formats in an Accept header with application/json.
var acceptJSON = strings.NewReplacer(runtime.ContentTypeProtobuf, runtime.ContentTypeJSON,
	runtime.ContentTypeYAML, runtime.ContentTypeJSON, runtime.ContentTypeCBOR, runtime.ContentTypeJSON)

// auditDocument requests the document from h again, as JSON, and records it in the audit event.
func auditDocument(q *request.Request, h http.Handler) {
	if q.Status != http.StatusOK {
		return
	}
	_ = q.AuditResponse(func() ([]byte, error) { // the function returns no error
		r := q.R.WithContext(q.R.Context())
		r.Header = http.Header{"Accept": {acceptJSON.Replace(q.R.Header.Get("Accept"))}}
		response := responsewriter.NewInMemoryResponseWriter()
		h.ServeHTTP(response, r)
		return response.Data(), nil
	})
}
