package server

import (
	"io"
	"net/http"
	"net/http/pprof"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// The limits of a connection to the ports for health and administration.
const (
	maxHeaderBytes    = 1 << 20
	readHeaderTimeout = time.Minute
	idleTimeout       = 2 * time.Minute
)

// newHealth is what the health port serves: is the process alive, and can it be dialled through. notReady says why it cannot,
// or nothing.
func newHealth(m *Metrics, notReady func() string) *http.Server {
	ok := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }
	ready := func(w http.ResponseWriter, r *http.Request) {
		if why := notReady(); why != "" {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, why)
			return
		}
		ok(w, r)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", ok)
	mux.HandleFunc("/livez", ok)
	mux.HandleFunc("/ready", ready) // the older name
	mux.HandleFunc("/readyz", ready)
	mux.Handle("/metrics", m.handler())
	return newPlain(mux)
}

// newAdmin is what the admin port serves. Profiling of contention costs every lock something.
func newAdmin(m *Metrics, profiling, contention bool) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("/metrics", m.handler())
	if profiling {
		mux.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusMovedPermanently))
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	if profiling && contention {
		runtime.SetBlockProfileRate(1)
	}
	return newPlain(mux)
}

func newPlain(h http.Handler) *http.Server {
	return &http.Server{Handler: h, MaxHeaderBytes: maxHeaderBytes, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout}
}

func (m *Metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
