package selector

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"k8s.io/apiserver/pkg/server/egressselector/metrics"

	"github.com/trellis-k8s/trellis/internal/tlsbatch"
)

// keepAlive is the interval of TCP keep-alive probes on connections to tunnel servers.
const keepAlive = 30 * time.Second

// tunnelServer is the address of a tunnel server, with the TLS configuration to connect to it.
type tunnelServer struct {
	kind             string // value of the metrics' transport label
	network, address string
	tlsConfig        func() (*tls.Config, error) // nil means no TLS
}

// unreachableError is the error of a failed connection to the tunnel server.
type unreachableError struct{ error }

// Unwrap returns the cause.
func (e unreachableError) Unwrap() error { return e.error }

// connect opens a connection to the tunnel server. Its errors are unreachableErrors.
func (s *tunnelServer) connect(ctx context.Context) (net.Conn, error) {
	conn, err := (&net.Dialer{KeepAlive: keepAlive}).DialContext(ctx, s.network, s.address)
	if err == nil && s.tlsConfig != nil {
		conn, err = s.handshake(ctx, conn)
	}
	if err != nil {
		return nil, unreachableError{fmt.Errorf("connect to the tunnel server at %s: %w", s.address, err)}
	}
	return conn, nil
}

func (s *tunnelServer) handshake(ctx context.Context, conn net.Conn) (net.Conn, error) {
	config, err := s.tlsConfig()
	if err == nil {
		client := tls.Client(tlsbatch.Conn(conn), config)
		if err = client.HandshakeContext(ctx); err == nil {
			return client, nil
		}
	}
	_ = conn.Close()
	return nil, err
}

// tunnel dials through a tunnel server.
type tunnel struct {
	name     string // of the selection
	protocol string // value of the metrics' protocol label
	*tunnelServer
	via func(ctx context.Context, address string) (net.Conn, error)
}

// dial implements Dial. The tunnel's other end resolves host names. The metrics are upstream's.
func (t *tunnel) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if network != "tcp" {
		return nil, fmt.Errorf("egress selection %s: network %s is not supported: a tunnel supports only tcp",
			t.name, network)
	}
	began := time.Now()
	metrics.Metrics.ObserveDialStart(t.protocol, t.kind)
	conn, err := t.via(ctx, address)
	if err != nil {
		stage := metrics.StageProxy
		if errors.As(err, new(unreachableError)) {
			stage = metrics.StageConnect
		}
		metrics.Metrics.ObserveDialFailure(t.protocol, t.kind, stage)
		return nil, fmt.Errorf("egress selection %s: %w", t.name, err)
	}
	metrics.Metrics.ObserveDialLatency(time.Since(began), t.protocol, t.kind)
	return conn, nil
}
