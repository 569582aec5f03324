package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// serveNonResource serves all paths that do not address a resource.
func (q *request) serveNonResource() {
	w := &responseRecorder{q.w, q}
	p, _ := strings.CutSuffix(q.r.URL.Path, "/")
	first, _, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
	issuer := (q.r.URL.Path == access.ConfigurationPath || q.r.URL.Path == access.KeysPath) &&
		q.server.config.Issuer != nil
	local, served := q.localVersion(p)
	dump := q.flowControlDump()
	service := q.aggregatedService()
	switch {
	case service != nil:
		q.proxy(service)
	case q.invalid || !strings.HasPrefix(q.r.URL.Path, "/"):
		q.fail(q.notFound())
	case local && !served:
		q.fail(pageNotFound(q))
	case q.r.Method != http.MethodGet && (local || issuer || p == "/api" || p == "/version"):
		q.fail(methodNotAllowed())
	case first == "api" || first == "apis":
		q.server.config.Discovery.ServeHTTP(w, q.r)
		q.auditDocument(q.server.config.Discovery)
	case first == "openapi":
		q.server.config.OpenAPI.ServeHTTP(w, q.r)
	case first == "healthz" || first == "livez" || first == "readyz":
		q.serveHealth(w, first)
	case p == "/version":
		serveVersion(w)
	case q.r.URL.Path == "/metrics":
		q.server.metrics.handler.ServeHTTP(w, q.r)
	case strings.HasPrefix(p, "/debug/pprof") && q.server.config.Profiling:
		serveProfile(w, q.r)
	case dump != nil:
		dump(w, q.r)
	case issuer:
		q.server.config.Issuer.ServeHTTP(w, q.r)
	case p == "" || q.r.URL.Path == "/index.html":
		writeJSON(w, metav1.RootPaths{Paths: q.server.paths()})
	default:
		q.fail(q.notFound())
	}
}

// localVersion parses the path of the discovery document of a group version, such as /apis/apps/v1. local reports
// whether the group is built in. served reports whether the group has the version.
func (q *request) localVersion(path string) (local, served bool) {
	parts := strings.Split(path, "/")
	switch catalog := q.server.live.Load(); {
	case len(parts) == 3 && parts[1] == "api":
		return catalog.LocalGroup("", parts[2])
	case len(parts) == 4 && parts[1] == "apis" && parts[2] != "":
		return catalog.LocalGroup(parts[2], parts[3])
	}
	return false, false
}

// responseRecorder records the status and the size of a response that another handler writes.
type responseRecorder struct {
	http.ResponseWriter
	request *request
}

// WriteHeader implements http.ResponseWriter.
func (o *responseRecorder) WriteHeader(status int) {
	o.request.status = status
	o.request.auditStart()
	o.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (o *responseRecorder) Write(p []byte) (int, error) {
	if o.request.status == 0 {
		o.request.status = http.StatusOK
	}
	o.request.size += len(p)
	return o.ResponseWriter.Write(p)
}

// Hijack implements http.Hijacker for http.ResponseController. The request becomes an upgraded connection.
func (o *responseRecorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(o.ResponseWriter).Hijack()
	if err == nil {
		o.request.status = http.StatusSwitchingProtocols
		if o.request.onUpgrade != nil {
			o.request.onUpgrade()
		}
		o.request.auditStart()
		// Close the connection when the request ends.
		context.AfterFunc(o.request.r.Context(), func() { _ = conn.Close() })
	}
	return conn, buffered, err
}

// Flush implements http.Flusher, which upstream's code needs.
func (o *responseRecorder) Flush() { _ = http.NewResponseController(o.ResponseWriter).Flush() }

// Unwrap returns the wrapped writer to http.ResponseController.
func (o *responseRecorder) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// writeJSON writes a document that is not an API object. Like upstream, it indents the JSON.
func writeJSON(w http.ResponseWriter, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", mediaJSON)
	_, _ = w.Write(append(body, '\n')) // an error means that the client has disconnected
}

func serveVersion(w http.ResponseWriter) {
	parts := strings.SplitN(strings.TrimPrefix(resource.KubernetesVersion, "v"), ".", 3)
	writeJSON(w, version.Info{
		Major: parts[0], Minor: parts[1], EmulationMajor: parts[0], EmulationMinor: parts[1],
		MinCompatibilityMajor: parts[0], MinCompatibilityMinor: previousMinor(parts[1]),
		GitVersion: resource.KubernetesVersion, GitTreeState: "clean", BuildDate: "1970-01-01T00:00:00Z",
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH,
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
func (s *Server) paths() []string {
	all := []string{
		"/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version",
	}
	for g := range s.live.Load().Groups() {
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
		for _, check := range s.checks(c) {
			for _, name := range check.names(c) {
				all = append(all, "/"+c+"/"+name)
			}
		}
	}
	slices.Sort(all)
	return all
}

// checks returns the checks of healthz, livez or readyz.
func (s *Server) checks(name string) []Check {
	all := []Check{{Name: "ping", Run: func() error { return nil }}}
	if name == "readyz" {
		all = append(append(all, s.config.Ready...), Check{Name: "shutdown", Run: func() error {
			if s.draining.Load() {
				return fmt.Errorf("process is shutting down")
			}
			return nil
		}})
		return all
	}
	return append(all, s.config.Live...)
}

// names returns the names of a check at healthz, livez or readyz. The storage check also has upstream's names.
func (c *Check) names(at string) []string {
	switch {
	case c.Name != "storage":
		return []string{c.Name}
	case at == "readyz":
		return []string{"etcd", "etcd-readiness", c.Name}
	}
	return []string{"etcd", c.Name}
}

// serveHealth serves one health check or all of them, with upstream's messages.
func (q *request) serveHealth(w http.ResponseWriter, name string) {
	checks := q.server.checks(name)
	if single, ok := strings.CutPrefix(q.r.URL.Path, "/"+name+"/"); ok { // no check has the name ""
		serveCheck(w, q.r, checks, name, single)
		return
	}
	query := q.query()
	excluded := query["exclude"]
	unknown := slices.Clone(excluded)
	var out bytes.Buffer
	failed := false
	for _, c := range checks {
		names := c.names(name)
		skip := slices.ContainsFunc(names, func(n string) bool { return slices.Contains(excluded, n) })
		unknown = slices.DeleteFunc(unknown, func(n string) bool { return slices.Contains(names, n) })
		sign, result := '+', "ok"
		if skip {
			result = "excluded: ok"
		} else if c.Run() != nil {
			failed = true
			sign, result = '-', "failed: reason withheld"
		}
		for _, n := range names {
			fmt.Fprintf(&out, "[%c]%s %s\n", sign, n, result)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		for i, u := range slices.Compact(unknown) {
			unknown[i] = fmt.Sprintf("%q", u)
		}
		fmt.Fprintf(&out, "warn: some health checks cannot be excluded: no matches for %s\n",
			strings.Join(slices.Compact(unknown), ","))
	}
	if failed {
		http.Error(w, out.String()+name+" check failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if _, verbose := query["verbose"]; !verbose {
		fmt.Fprint(w, "ok")
		return
	}
	fmt.Fprintf(w, "%s%s check passed\n", out.String(), name)
}

func serveCheck(w http.ResponseWriter, r *http.Request, checks []Check, at, name string) {
	for _, c := range checks {
		if !slices.Contains(c.names(at), name) {
			continue
		}
		if err := c.Run(); err != nil {
			http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "ok")
		return
	}
	http.NotFound(w, r)
}
