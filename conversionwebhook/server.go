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
	// Address to listen on; "" means ":8443".
	Address string
	// CertFile and KeyFile have the serving certificate in PEM, which has to be for the name that the API server calls:
	// <service>.<namespace>.svc, or the host of the URL. They are read again when they change, as mounted Secrets do.
	CertFile, KeyFile string
	// ClientCAFile has the CAs, in PEM, of the certificates that callers must show. With "" none is asked for. It is
	// read again as the others are.
	ClientCAFile string
	// Handler answers; one Handler or more behind a ServeMux.
	Handler http.Handler
}

// The limits of a connection. An API server waits for 30 seconds.
const (
	headerTimeout = 10 * time.Second
	bodyTimeout   = 30 * time.Second
	answerTimeout = time.Minute
	idleTimeout   = 2 * time.Minute
)

// Run listens and serves until ctx is done, and then lets the requests under way finish. It fails at once if the files
// cannot be read.
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

// Serve is Run on a listener, which it closes.
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
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
		TLSConfig: &tls.Config{
			MinVersion:         tls.VersionTLS12,
			NextProtos:         []string{"h2", "http/1.1"},
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.config(time.Now()) },
			GetCertificate:     func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("no certificate") },
		},
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(l, "", "") }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	finishing, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	err := server.Shutdown(finishing)
	<-served
	return err
}

// lookEvery is how often the files are looked at, at most.
const lookEvery = time.Second

// files is the TLS configuration that a Server's files describe.
type files struct {
	server *Server

	mu      sync.Mutex
	looked  time.Time
	seen    [3]stamp
	current *tls.Config
}

// stamp tells one state of a file from another.
type stamp struct {
	modified time.Time
	size     int64
}

// config returns the configuration for a connection. Files that cannot be read leave the one before in place.
func (f *files) config(now time.Time) (*tls.Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != nil && now.Sub(f.looked) < lookEvery {
		return f.current, nil
	}
	f.looked = now
	seen, err := f.stamps()
	if err == nil && (f.current == nil || seen != f.seen) {
		var fresh *tls.Config
		if fresh, err = f.load(); err == nil {
			f.current, f.seen = fresh, seen
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
		return nil, fmt.Errorf("read the CAs of clients: %w", err)
	}
	c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("read the CAs of clients: %s has none", f.server.ClientCAFile)
	}
	return c, nil
}
