package agent

import (
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"k8s.io/klog/v2"
)

const readHeaderTimeout, maxHeaderBytes = 60 * time.Second, 64 << 10

// healthHandler answers at the health port: alive as long as there is an answer, ready with a session. The words are the reference's.
func healthHandler(ready func() bool, metrics http.Handler) http.Handler {
	alive := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }
	isReady := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !ready():
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, "[+]ping ok\n[-]server-connected failed: no servers connected\n")
		case r.URL.Query().Has("verbose"):
			fmt.Fprint(w, "[+]ping ok\n[+]server-connected ok\ncheck passed\n")
		default:
			fmt.Fprint(w, "ok")
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", alive)
	mux.HandleFunc("/livez", alive)
	mux.HandleFunc("/readyz", isReady)
	mux.HandleFunc("/ready", isReady)
	mux.Handle("/metrics", metrics)
	return mux
}

// adminHandler answers at the admin port.
func adminHandler(metrics http.Handler, profiling bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", metrics)
	if profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// listen serves one of the two, called by its flag, until the server is closed.
func listen(flag, address string, h http.Handler) (*http.Server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	klog.InfoS("Listening", "for", flag, "address", l.Addr().String())
	s := &http.Server{Handler: h, ReadHeaderTimeout: readHeaderTimeout, MaxHeaderBytes: maxHeaderBytes}
	go func() { _ = s.Serve(l) }() // ends when s is closed
	return s, nil
}
