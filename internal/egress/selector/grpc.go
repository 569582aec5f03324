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

// hintGRPC is what a tunnel server may be that is not understood.
const hintGRPC = "this server has proxyProtocol GRPC: does that one run with --mode=grpc, or with --mode=http-connect?"

// hintCertificate is what to look at where the tunnel server does not accept this server's certificate. Its alert of TLS has no error
// value, and with TLS 1.3 comes only when the connection is there.
const hintCertificate = "is clientCert of this server's egress configuration of the CA in --server-ca-cert of that one, and in force?"

// hinted says what to do about an alert of the tunnel server about certificates.
func hinted(err error) error {
	const alert = "remote error: tls: "
	for _, what := range []string{"certificate required", "bad certificate", "expired certificate", "unknown certificate authority", "unknown certificate"} {
		if err != nil && strings.Contains(err.Error(), alert+what) {
			return fmt.Errorf("%w; %s", err, hintCertificate)
		}
	}
	return err
}

// viaGRPC asks for connections by the gRPC service ProxyService, over one connection to the tunnel server that they share.
func (s *Selector) viaGRPC(to *entrance) func(ctx context.Context, address string) (net.Conn, error) {
	shared := client.New(func(ctx context.Context) (net.Conn, error) {
		conn, err := to.connect(ctx)
		if err != nil && strings.Contains(err.Error(), "no application protocol") { // an alert of TLS, for which there is no error value
			return nil, unreachableError{fmt.Errorf("%w; %s", err, hintGRPC)}
		}
		return conn, err
	})
	s.close = append(s.close, shared.Close)
	return func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := shared.DialContext(ctx, "tcp", address)
		if unreachable := (unreachableError{}); errors.As(err, &unreachable) {
			return nil, unreachableError{hinted(unreachable.error)}
		}
		if errors.Is(err, h2.ErrNotHTTP2) {
			err = fmt.Errorf("%w; %s", err, hintGRPC)
		}
		if err != nil {
			return nil, fmt.Errorf("ask the tunnel server at %s for %s: %w", to.address, address, hinted(err))
		}
		return conn, nil
	}
}
