package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trellis-k8s/trellis/internal/access"
)

// The limits of a connection are upstream's.
const (
	maxHeaderBytes    = 1 << 20
	readHeaderTimeout = 32 * time.Second
	idleTimeout       = 90 * time.Second
	// writeTimeout bounds how long a client may take over a response; streams and long lists
	// set deadlines of their own.
	writeTimeout = 2 * time.Minute
	maxStreams   = 100
	streamBuffer = 256 << 10
)

// newHTTP is the server of HTTPS, version 1.1 and 2. Client certificates are asked for
// and read, not demanded: who a request is from is for the handler to say.
func newHTTP(handler http.Handler, certificate tls.Certificate, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler: handler,
		TLSConfig: &tls.Config{
			MinVersion:   tls.VersionTLS12,
			Certificates: []tls.Certificate{certificate},
			ClientAuth:   tls.RequestClientCert,
			NextProtos:   []string{"h2", "http/1.1"},
		},
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReadFrameSize:              streamBuffer,
			MaxReceiveBufferPerStream:     streamBuffer,
			MaxReceiveBufferPerConnection: maxStreams * streamBuffer,
		},
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		WriteTimeout:      writeTimeout,
		ConnContext:       access.ConnContext,
		ErrorLog:          log.New(quietHandshakes{logger}, "", 0),
	}
}

// certificate is what the server serves with.
func (s *Server) certificate() (tls.Certificate, error) {
	c := &s.config.TLS
	if c.CertFile == "" {
		return s.keys.Serving, nil
	}
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return pair, fmt.Errorf("serving certificate: %w", err)
	}
	return pair, nil
}

// quietHandshakes logs what net/http has to say, except about clients that hang up or do not trust
// the certificate: anybody can cause those, as often as they like.
type quietHandshakes struct{ logger *slog.Logger }

func (q quietHandshakes) Write(p []byte) (int, error) {
	level := slog.LevelWarn
	if strings.Contains(string(p), "TLS handshake error") {
		level = slog.LevelDebug
	}
	q.logger.Log(context.Background(), level, strings.TrimSpace(string(p)))
	return len(p), nil
}

var _ io.Writer = quietHandshakes{}

// listen opens the address that clients will connect to.
func listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("listen: %w (another server may be running; choose another port with --secure-port, 0 picks a free one)", err)
		}
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// hosts are the names and addresses that the serving certificate has to carry; serviceIP is that by which clients inside
// a cluster would know the API.
func hosts(bound net.Addr, serviceIP string) []string {
	names := []string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		"localhost", serviceIP, "127.0.0.1", "::1",
	}
	if name, err := os.Hostname(); err == nil {
		name = strings.ToLower(name)
		if len(validation.IsDNS1123Subdomain(name)) == 0 {
			names = append(names, name)
		}
	}
	tcp, ok := bound.(*net.TCPAddr)
	if !ok {
		return names
	}
	if !tcp.IP.IsUnspecified() {
		if ip := tcp.IP.String(); !slices.Contains(names, ip) {
			names = append(names, ip)
		}
		return names
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return names
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			names = append(names, n.IP.String())
		}
	}
	return names
}

// urlOf is how a client on this machine reaches the listener.
func urlOf(bound net.Addr) string {
	host, port, err := net.SplitHostPort(bound.String())
	if err != nil {
		return "https://" + bound.String()
	}
	switch ip := net.ParseIP(host); {
	case ip == nil || !ip.IsUnspecified():
	case ip.To4() != nil:
		host = "127.0.0.1"
	default: // a socket on :: takes IPv4 as well where the system allows it
		host = "localhost"
	}
	return "https://" + net.JoinHostPort(host, port)
}
