package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// pagesDir is the folder of the web server's pages. If this folder contains the file "sick", all requests fail.
const pagesDir = "/usr/share/nginx/html"

// serveWeb is the program for images of web servers, such as nginx. It serves HTTP on ports 80 and 8080, HTTPS on port
// 443, and the health protocol of gRPC on port 9000. Its response is the requested page. If the page does not exist,
// the response is its host name and the variable VERSION. serveWeb prints each request, and exits with code 0 after
// SIGTERM.
func serveWeb() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	host, err := os.Hostname()
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err != nil {
		fail(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL.Path)
		if failing() {
			http.Error(w, "sick", http.StatusInternalServerError)
		} else if page, err := os.ReadFile(filepath.Join(pagesDir, filepath.Clean(r.URL.Path))); err == nil {
			_, _ = w.Write(page)
		} else {
			fmt.Fprintln(w, host, os.Getenv("VERSION"))
		}
	})
	g := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(g, health{})
	server := func(l net.Listener) *httptest.Server {
		return &httptest.Server{Listener: l, Config: &http.Server{Handler: handler}}
	}
	for port, start := range map[string]func(net.Listener){
		":80":   func(l net.Listener) { server(l).Start() },
		":8080": func(l net.Listener) { server(l).Start() },
		":443":  func(l net.Listener) { server(l).StartTLS() }, // probes do not verify the certificate
		":9000": func(l net.Listener) { go func() { fail(g.Serve(l)) }() },
	} {
		l, err := net.Listen("tcp", port)
		if err != nil {
			fail(err)
		}
		start(l)
	}
	<-ctx.Done()
	os.Exit(0)
}

func failing() bool {
	_, err := os.Stat(filepath.Join(pagesDir, "sick"))
	return err == nil
}

type health struct {
	grpc_health_v1.UnimplementedHealthServer
}

func (health) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	status := grpc_health_v1.HealthCheckResponse_SERVING
	if failing() {
		status = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	return &grpc_health_v1.HealthCheckResponse{Status: status}, nil
}
