// Package admin serves the health and admin ports of tunnel servers and agents. It also creates their metrics
// registries, with the metric names of the Konnectivity reference implementation. It must not import the server
// or the agent.
package admin

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits of the connections to the health and admin ports.
const (
	maxHeaderBytes    = 64 << 10
	readHeaderTimeout = time.Minute
	idleTimeout       = 2 * time.Minute
)

// HealthHandler returns the handler of the health port. The liveness endpoints always answer "ok". The function
// ready answers the readiness endpoints. It reports whether connections can be opened through the tunnel.
func HealthHandler(r *prometheus.Registry, ready http.HandlerFunc) http.Handler {
	alive := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }
	mux := newMux(r)
	mux.HandleFunc("/healthz", alive)
	mux.HandleFunc("/livez", alive)
	mux.HandleFunc("/ready", ready) // the older name
	mux.HandleFunc("/readyz", ready)
	return mux
}

// AdminHandler returns the handler of the admin port. If profiling and contention are true, it enables block
// profiling for the whole process, which slows down every lock.
func AdminHandler(r *prometheus.Registry, profiling, contention bool) http.Handler {
	mux := newMux(r)
	if profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	if profiling && contention {
		runtime.SetBlockProfileRate(1)
	}
	return mux
}

func newMux(r *prometheus.Registry) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	return mux
}

// Serve listens on address and serves h in the background until the returned server is closed. The server's Addr
// is the actual listen address. Errors contain flag, the name of the command-line flag that sets the port.
func Serve(flag, address string, h http.Handler) (*http.Server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w (choose another port or address)", flag, err)
	}
	s := &http.Server{
		Addr:              l.Addr().String(),
		Handler:           h,
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
	}
	go func() { _ = s.Serve(l) }() // returns when s is closed
	return s, nil
}
