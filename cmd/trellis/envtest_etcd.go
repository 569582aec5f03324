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
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// standIn is what etcd's stand-in says at /version: who it is, and where its kube-apiserver may keep its store.
type standIn struct {
	Trellis string `json:"trellis"`
	DataDir string `json:"dataDir"`
}

// newStandIn is this program under the name etcd.
func newStandIn() *cobra.Command {
	var dataDir string
	var clientURLs []string
	cmd := &cobra.Command{
		Use:   "etcd",
		Short: "What Trellis has in place of etcd for envtest",
		Long: `This is Trellis, standing in for etcd in tests with envtest. It stores nothing: Trellis' kube-apiserver
asks it for its --data-dir, and keeps its objects there. A real etcd does as well.`,
		Args: takes("flags only", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runStandIn(cmd.Context(), dataDir, clientURLs)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&dataDir, "data-dir", "", "folder for everything that is kept")
	flags.StringSliceVar(&clientURLs, "listen-client-urls", nil, "URLs to listen on, http://HOST:PORT")
	changeNothing(flags, []string{"unsafe-no-fsync"}, []string{
		"advertise-client-urls", "initial-advertise-peer-urls", "initial-cluster", "listen-peer-urls", "log-level", "logger",
		"max-request-bytes", "name", "quota-backend-bytes", "snapshot-count",
	})
	return cmd
}

// runStandIn answers until ctx is done, a signal arrives or it fails.
func runStandIn(ctx context.Context, dataDir string, clientURLs []string) error {
	if dataDir == "" || len(clientURLs) == 0 {
		return errors.New("name a folder with --data-dir, and an address with --listen-client-urls")
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
	server := &http.Server{Handler: standInHandler(dataDir), ReadHeaderTimeout: 10 * time.Second}
	defer func() { _ = server.Close() }()
	failed := make(chan error, len(clientURLs))
	for _, text := range clientURLs {
		l, err := listenAt(text)
		if err != nil {
			return fmt.Errorf("--listen-client-urls: %w", err)
		}
		go func() { failed <- server.Serve(l) }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

func listenAt(text string) (net.Listener, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("%q is not like http://127.0.0.1:2379", text)
	}
	return net.Listen("tcp", u.Host)
}

func standInHandler(dataDir string) http.Handler {
	own, _ := versions()
	mux := http.NewServeMux()
	answer := func(path string, value any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(value) // a client that is gone hears nothing
		})
	}
	answer("/health", map[string]string{"health": "true", "reason": ""})
	answer("/version", standIn{Trellis: own, DataDir: dataDir})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "this is Trellis, standing in for etcd, and stores nothing", http.StatusNotFound)
	})
	return mux
}

// whoIs asks what listens at a URL whether it is a stand-in. A real etcd says nothing of that, and what
// does not answer is left to etcd's client.
func whoIs(ctx context.Context, server string) (is standIn, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	at, err := url.JoinPath(server, "version")
	if err != nil {
		return is, false
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return is, false
	}
	transport := &http.Transport{DisableKeepAlives: true} // and no proxy
	response, err := transport.RoundTrip(request)
	if err != nil {
		return is, false
	}
	defer func() { _ = response.Body.Close() }()
	err = json.NewDecoder(io.LimitReader(response.Body, 1<<16)).Decode(&is)
	return is, err == nil && is.Trellis != "" && filepath.IsAbs(is.DataDir)
}
