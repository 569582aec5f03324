// Package admin is what tunnel servers and agents have alike for those who look after them: the ports for health and administration,
// and metrics by the reference's names.
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

// The limits of a connection to one of the ports.
const (
	maxHeaderBytes    = 64 << 10
	readHeaderTimeout = time.Minute
	idleTimeout       = 2 * time.Minute
)

// HealthHandler is what the health port serves: it is alive as long as there is an answer; ready says whether it can be dialled through.
func HealthHandler(r *prometheus.Registry, ready http.HandlerFunc) http.Handler {
	alive := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }
	mux := newMux(r)
	mux.HandleFunc("/healthz", alive)
	mux.HandleFunc("/livez", alive)
	mux.HandleFunc("/ready", ready) // the older name
	mux.HandleFunc("/readyz", ready)
	return mux
}

// AdminHandler is what the admin port serves. Profiling of contention, which is on from here on, costs every lock something.
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

// Serve serves a port until the server, which has its true address, is closed. Errors name the flag that chooses the port.
func Serve(flag, address string, h http.Handler) (*http.Server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w (choose another port or address)", flag, err)
	}
	s := &http.Server{Addr: l.Addr().String(), Handler: h, MaxHeaderBytes: maxHeaderBytes, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout}
	go func() { _ = s.Serve(l) }() // ends when s is closed
	return s, nil
}
