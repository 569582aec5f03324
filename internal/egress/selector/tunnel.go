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

// keepAlive is how often TCP asks a tunnel server that is silent whether it is there.
const keepAlive = 30 * time.Second

// entrance is where a tunnel server takes connections.
type entrance struct {
	kind             string // as metrics call it
	network, address string
	secured          func() (*tls.Config, error) // nil: not at all
}

// unreachableError says that there is no connection to the tunnel server.
type unreachableError struct{ error }

// Unwrap is for errors.Is.
func (e unreachableError) Unwrap() error { return e.error }

// connect opens a connection to the tunnel server. Its errors are unreachableErrors.
func (e *entrance) connect(ctx context.Context) (net.Conn, error) {
	conn, err := (&net.Dialer{KeepAlive: keepAlive}).DialContext(ctx, e.network, e.address)
	if err == nil && e.secured != nil {
		conn, err = e.secure(ctx, conn)
	}
	if err != nil {
		return nil, unreachableError{fmt.Errorf("connect to the tunnel server at %s: %w", e.address, err)}
	}
	return conn, nil
}

func (e *entrance) secure(ctx context.Context, conn net.Conn) (net.Conn, error) {
	config, err := e.secured()
	if err == nil {
		secured := tls.Client(tlsbatch.Conn(conn), config)
		if err = secured.HandshakeContext(ctx); err == nil {
			return secured, nil
		}
	}
	_ = conn.Close()
	return nil, err
}

// tunnel is the way through a tunnel server.
type tunnel struct {
	name     string // of the selection
	protocol string // as metrics call it
	*entrance
	ask func(ctx context.Context, address string) (net.Conn, error)
}

// dial is a Dial. Names are looked up where the tunnel ends. Metrics are upstream's.
func (t *tunnel) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if network != "tcp" {
		return nil, fmt.Errorf("egress selection %s: %s is not tcp, which is all that goes through a tunnel", t.name, network)
	}
	began := time.Now()
	metrics.Metrics.ObserveDialStart(t.protocol, t.kind)
	conn, err := t.ask(ctx, address)
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
