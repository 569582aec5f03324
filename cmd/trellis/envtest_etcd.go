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
)

// standIn is what etcd's stand-in says at /version: who it is, and where its kube-apiserver may keep its store.
type standIn struct {
	Trellis string `json:"trellis"`
	DataDir string `json:"dataDir"`
}

// newStandIn is this program under the name etcd.
func newStandIn() *cobra.Command {
	var dataDir string
	var clientURLs, peerURLs, advertised []string
	level := etcdLevel("info")
	cmd := &cobra.Command{
		Use:   "etcd",
		Short: "What Trellis has in place of etcd for envtest",
		Long: `This is Trellis, standing in for etcd in tests with envtest. It stores nothing: Trellis' kube-apiserver
asks it for its --data-dir, and keeps its objects there. A real etcd does as well.`,
		Args: takes("flags only", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(advertised) > 0 && !slices.Equal(advertised, clientURLs) {
				return errors.New("--advertise-client-urls must be the URLs of --listen-client-urls, where the stand-in is reached")
			}
			return runStandIn(cmd.Context(), dataDir, clientURLs, peerURLs)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&dataDir, "data-dir", "", "folder for everything that is kept")
	flags.StringSliceVar(&clientURLs, "listen-client-urls", nil, "URLs to listen on, http://HOST:PORT")
	flags.StringSliceVar(&advertised, "advertise-client-urls", nil, "URLs at which clients reach the stand-in; only those of --listen-client-urls")
	flags.StringSliceVar(&peerURLs, "listen-peer-urls", nil, "URLs to listen on for peers, http://HOST:PORT; a stand-in has no peers, and answers 404 there")
	flags.Bool("unsafe-no-fsync", false, "omission of fsync; the stand-in itself writes no files, so both values mean the same")
	flags.Var(&level, "log-level", "lowest level of logged messages: debug, info, warn, error, panic or fatal; the stand-in logs none")
	fix(flags, "logger", "string", "zap", "logger")
	fix(flags, "name", "string", "default", "name of this member")
	fix(flags, "max-request-bytes", "uint", "1572864", "maximum size of a request in bytes")
	fix(flags, "quota-backend-bytes", "int", "0", "maximum size of the store in bytes (0 means that it has no limit)")
	fix(flags, "snapshot-count", "uint", "10000", "number of writes between snapshots")
	return cmd
}

// runStandIn answers until ctx is done, a signal arrives or it fails.
func runStandIn(ctx context.Context, dataDir string, clientURLs, peerURLs []string) error {
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
	failed := make(chan error, len(clientURLs)+len(peerURLs))
	for _, listener := range []struct {
		flag    string
		urls    []string
		handler http.Handler
	}{
		{"--listen-client-urls", clientURLs, standInHandler(dataDir)},
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

// etcdLevel is a level of etcd's log.
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
