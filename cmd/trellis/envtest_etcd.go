package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/trellis-k8s/trellis/internal/flags"
)

// stubVersion is the response of the etcd stub at /version. It holds the version of Trellis and the folder in which
// kube-apiserver stores its state.
type stubVersion struct {
	Trellis string `json:"trellis"`
	DataDir string `json:"dataDir"`
}

// newEtcdStub returns the command that runs under the name etcd.
func newEtcdStub() *cobra.Command {
	var dataDir string
	var clientURLs, peerURLs, advertised []string
	level := etcdLevel("info")
	cmd := &cobra.Command{
		Use:   "etcd",
		Short: "Stub etcd for envtest",
		Long: `This program is Trellis under the name etcd, a stub for tests with envtest. It stores nothing. The
kube-apiserver of Trellis reads the value of --data-dir from the stub and stores the objects in this
folder. It can also use a real etcd instead of this stub.`,
		Args: takes("no arguments", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(advertised) > 0 && !slices.Equal(advertised, clientURLs) {
				return errors.New("--advertise-client-urls must be equal to --listen-client-urls")
			}
			return runEtcdStub(cmd.Context(), dataDir, clientURLs, peerURLs)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&dataDir, "data-dir", "", "folder in which kube-apiserver stores its state")
	fs.StringSliceVar(&clientURLs, "listen-client-urls", nil, "URLs to listen on, http://HOST:PORT")
	fs.StringSliceVar(&advertised, "advertise-client-urls", nil,
		"URLs at which clients reach the stub. They must be equal to --listen-client-urls")
	fs.StringSliceVar(&peerURLs, "listen-peer-urls", nil,
		"URLs to listen on for peers, http://HOST:PORT. The stub has no peers and responds with 404")
	fs.Bool("unsafe-no-fsync", false, "omit fsync. This flag has no effect, because the stub writes no files")
	fs.Var(&level, "log-level",
		"lowest level of logged messages: debug, info, warn, error, panic or fatal. This flag has no effect, because "+
			"the stub logs nothing")
	flags.Fixed(fs, "logger", "string", "zap", "name of the logger")
	flags.Fixed(fs, "name", "string", "default", "name of this member")
	flags.Fixed(fs, "max-request-bytes", "uint", "1572864", "maximum size of a request in bytes")
	flags.Fixed(fs, "quota-backend-bytes", "int", "0", "maximum size of the store in bytes (0 means no limit)")
	flags.Fixed(fs, "snapshot-count", "uint", "10000", "number of writes between snapshots")
	return cmd
}

// runEtcdStub serves until ctx is done, a signal arrives, or a listener fails.
func runEtcdStub(ctx context.Context, dataDir string, clientURLs, peerURLs []string) error {
	if dataDir == "" || len(clientURLs) == 0 {
		return errors.New("--data-dir and --listen-client-urls must be set")
	}
	dataDir, err := filepath.Abs(dataDir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	failed := make(chan error, len(clientURLs)+len(peerURLs))
	for _, listener := range []struct {
		flag    string
		urls    []string
		handler http.Handler
	}{
		{"--listen-client-urls", clientURLs, stubHandler(dataDir)},
		{"--listen-peer-urls", peerURLs, http.NotFoundHandler()},
	} {
		server := &http.Server{Handler: listener.handler, ReadHeaderTimeout: 10 * time.Second}
		defer func() { _ = server.Close() }()
		for _, text := range listener.urls {
			l, err := listenAt(text)
			if err != nil {
				return fmt.Errorf("%s: %w", listener.flag, err)
			}
			go func() { failed <- server.Serve(l) }()
		}
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// etcdLevel is a log level of etcd.
type etcdLevel string

// String implements pflag.Value.
func (l *etcdLevel) String() string { return string(*l) }

// Type implements pflag.Value.
func (l *etcdLevel) Type() string { return "string" }

// Set implements pflag.Value.
func (l *etcdLevel) Set(value string) error {
	if !slices.Contains([]string{"debug", "info", "warn", "error", "panic", "fatal"}, value) {
		return errors.New("must be debug, info, warn, error, panic or fatal")
	}
	*l = etcdLevel(value)
	return nil
}

func listenAt(text string) (net.Listener, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("%q must be a URL such as http://127.0.0.1:2379", text)
	}
	return net.Listen("tcp", u.Host)
}

func stubHandler(dataDir string) http.Handler {
	own, _ := versions()
	mux := http.NewServeMux()
	respond := func(path string, value any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(value) // fails if the client has disconnected
		})
	}
	respond("/health", map[string]string{"health": "true", "reason": ""})
	respond("/version", stubVersion{Trellis: own, DataDir: dataDir})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "this is the etcd stub of Trellis, which stores nothing", http.StatusNotFound)
	})
	return mux
}

// findStub reports whether the server at a URL is an etcd stub, and returns the response of the stub. It returns
// false for a real etcd and for a server that does not respond. For the latter, the etcd client returns an error
// later.
func findStub(ctx context.Context, server string) (stub stubVersion, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	at, err := url.JoinPath(server, "version")
	if err != nil {
		return stub, false
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return stub, false
	}
	transport := &http.Transport{DisableKeepAlives: true} // without a proxy
	response, err := transport.RoundTrip(request)
	if err != nil {
		return stub, false
	}
	defer func() { _ = response.Body.Close() }()
	err = json.NewDecoder(io.LimitReader(response.Body, 1<<16)).Decode(&stub)
	return stub, err == nil && stub.Trellis != "" && filepath.IsAbs(stub.DataDir)
}
