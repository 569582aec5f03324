package health

import (
	"net/http"
	"net/http/pprof"
	"strings"
)

// serveProfile serves /debug/pprof, like kube-apiserver with --profiling.
func serveProfile(w http.ResponseWriter, r *http.Request) {
	switch strings.TrimPrefix(r.URL.Path, "/debug/pprof") {
	case "/profile":
		pprof.Profile(w, r)
	case "/symbol":
		pprof.Symbol(w, r)
	case "/trace":
		pprof.Trace(w, r)
	case "":
		http.Redirect(w, r, "/debug/pprof/", http.StatusMovedPermanently)
	default:
		pprof.Index(w, r)
	}
}
