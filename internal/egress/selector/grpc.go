package selector

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/trellis-k8s/trellis/internal/konnectivity/client"
	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
)

// Hints for the case that this server and the tunnel server use different protocols.
const (
	hintGRPC    = "this server has proxyProtocol GRPC, so the tunnel server must run with --mode=grpc"
	hintConnect = "this server has proxyProtocol HTTPConnect, so the tunnel server must run with --mode=http-connect"
)

// hintCertificate is the hint if the tunnel server rejects this server's certificate. Go has no error value for that
// TLS alert, and with TLS 1.3 the alert arrives only after the handshake.
const hintCertificate = "check that clientCert in the egress configuration is valid and issued by the tunnel " +
	"server's --server-ca-cert"

// withHint adds hintCertificate to an error if the error is a TLS alert about a certificate, sent by the tunnel
// server.
func withHint(err error) error {
	const alert = "remote error: tls: "
	for _, text := range []string{"certificate required", "bad certificate", "expired certificate",
		"unknown certificate authority", "unknown certificate"} {
		if err != nil && strings.Contains(err.Error(), alert+text) {
			return fmt.Errorf("%w; %s", err, hintCertificate)
		}
	}
	return err
}

// viaGRPC returns a function that dials through the gRPC service ProxyService. All dials share one connection to the
// tunnel server.
func (s *Selector) viaGRPC(to *tunnelServer) func(ctx context.Context, address string) (net.Conn, error) {
	shared := client.New(func(ctx context.Context) (net.Conn, error) {
		conn, err := to.connect(ctx)
		// Go has no error value for this TLS alert.
		if err != nil && strings.Contains(err.Error(), "no application protocol") {
			return nil, unreachableError{fmt.Errorf("%w; %s", err, hintGRPC)}
		}
		return conn, err
	})
	s.close = append(s.close, shared.Close)
	return func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := shared.DialContext(ctx, "tcp", address)
		if unreachable := (unreachableError{}); errors.As(err, &unreachable) {
			return nil, unreachableError{withHint(unreachable.error)}
		}
		if errors.Is(err, h2.ErrNotHTTP2) {
			err = fmt.Errorf("%w; %s", err, hintGRPC)
		}
		if err != nil {
			return nil, fmt.Errorf("tunnel server at %s: dial %s: %w", to.address, address, withHint(err))
		}
		return conn, nil
	}
}
