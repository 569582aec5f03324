package conversionwebhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// Server serves a webhook over TLS.
type Server struct {
	// Address is the address to listen on. "" means ":8443".
	Address string
	// CertFile and KeyFile hold the serving certificate in PEM. It must be valid for the name that the API server
	// calls: <service>.<namespace>.svc, or the host of the URL. The files are reloaded when they change. So they can
	// be files of a mounted Secret.
	CertFile, KeyFile string
	// ClientCAFile holds the CAs of client certificates in PEM. "" means that no client certificate is required. The
	// file is reloaded when it changes.
	ClientCAFile string
	// Handler handles the requests: a *Handler, or an http.ServeMux with several of them.
	Handler http.Handler
}

// The timeouts of a connection. An API server waits 30 seconds for a response.
const (
	headerTimeout   = 10 * time.Second
	bodyTimeout     = 30 * time.Second
	responseTimeout = time.Minute
	idleTimeout     = 2 * time.Minute
)

// Run listens and serves until ctx is done, and then waits for the requests in flight. It returns an error immediately
// if the files cannot be read.
func (s *Server) Run(ctx context.Context) error {
	address := s.Address
	if address == "" {
		address = ":8443"
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return s.Serve(ctx, l)
}

// Serve is like Run, but serves on the listener l. It closes the listener when it returns.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	files := &files{server: s}
	if _, err := files.config(time.Now()); err != nil {
		_ = l.Close()
		return err
	}
	server := &http.Server{
		Handler:           s.Handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       bodyTimeout,
		WriteTimeout:      responseTimeout,
		IdleTimeout:       idleTimeout,
		TLSConfig: &tls.Config{
			MinVersion:         tls.VersionTLS12,
			NextProtos:         []string{"h2", "http/1.1"},
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.config(time.Now()) },
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				return nil,
					errors.New("no certificate")
			},
		},
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(l, "", "") }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	finishing, cancel := context.WithTimeout(context.WithoutCancel(ctx), responseTimeout)
	defer cancel()
	err := server.Shutdown(finishing)
	<-served
	return err
}

// checkInterval is the minimum interval between two checks of the files for changes.
const checkInterval = time.Second

// files loads the TLS configuration from a Server's files and caches it.
type files struct {
	server *Server

	mu      sync.Mutex
	checked time.Time // time of the last check
	seen    [3]stamp  // states of the files when current was loaded
	current *tls.Config
}

// stamp identifies the state of a file.
type stamp struct {
	modified time.Time
	size     int64
}

// config returns the configuration for a connection. If the files cannot be read, it returns the last valid
// configuration.
func (f *files) config(now time.Time) (*tls.Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != nil && now.Sub(f.checked) < checkInterval {
		return f.current, nil
	}
	f.checked = now
	seen, err := f.stamps()
	if err == nil && (f.current == nil || seen != f.seen) {
		var loaded *tls.Config
		if loaded, err = f.load(); err == nil {
			f.current, f.seen = loaded, seen
		}
	}
	if f.current != nil {
		return f.current, nil
	}
	return nil, err
}

func (f *files) stamps() (out [3]stamp, err error) {
	for i, path := range []string{f.server.CertFile, f.server.KeyFile, f.server.ClientCAFile} {
		if path == "" {
			continue
		}
		var info fs.FileInfo
		if info, err = os.Stat(path); err != nil {
			return out, err
		}
		out[i] = stamp{info.ModTime(), info.Size()}
	}
	return out, nil
}

func (f *files) load() (*tls.Config, error) {
	certificate, err := tls.LoadX509KeyPair(f.server.CertFile, f.server.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read the serving certificate: %w", err)
	}
	c := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2", "http/1.1"},
		Certificates: []tls.Certificate{certificate},
		ClientAuth:   tls.NoClientCert,
	}
	if f.server.ClientCAFile == "" {
		return c, nil
	}
	data, err := os.ReadFile(f.server.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("read the client CAs: %w", err)
	}
	c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("read the client CAs: %s contains no certificate", f.server.ClientCAFile)
	}
	return c, nil
}
