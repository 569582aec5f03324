// Package serving accepts HTTPS connections: addresses, certificates, limits and shutdown. It must not depend on the
// handler of requests.
package serving

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/util/validation"
)

// quietHandshakes logs the messages of net/http. Messages about failed TLS handshakes and exhausted file descriptors
// have the level debug, because any client can cause very many of them. The type connections also logs exhausted file
// descriptors, at most once a second.
type quietHandshakes struct{ logger *slog.Logger }

func (q quietHandshakes) Write(p []byte) (int, error) {
	level := slog.LevelWarn
	if text := string(p); strings.Contains(text, "TLS handshake error") ||
		strings.Contains(text, "too many open files") {
		level = slog.LevelDebug
	}
	q.logger.Log(context.Background(), level, strings.TrimSpace(string(p)))
	return len(p), nil
}

var _ io.Writer = quietHandshakes{}

// Listen opens a listener at the server's address.
func Listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("listen: %w (another server may use the port; choose another one with "+
				"--secure-port, or 0 for any free port)", err)
		}
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// Hosts returns the host names and addresses for the serving certificate. They include those in others.
func Hosts(bound net.Addr, others ...string) []string {
	names := append(others, LoopbackName, "localhost", "127.0.0.1", "::1")
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

// URL returns the URL of the listener for a client on this machine.
func URL(bound net.Addr) string {
	host, port, err := net.SplitHostPort(bound.String())
	if err != nil {
		return "https://" + bound.String()
	}
	switch ip := net.ParseIP(host); {
	case ip == nil || !ip.IsUnspecified():
	case ip.To4() != nil:
		host = "127.0.0.1"
	default: // a socket on :: also accepts IPv4 if the system allows it
		host = "localhost"
	}
	return "https://" + net.JoinHostPort(host, port)
}
