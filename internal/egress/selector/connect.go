package selector

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/trellis-k8s/trellis/internal/proxydial"
)

// viaConnect opens a connection to the tunnel server and asks for one by HTTP CONNECT (RFC 9110, 9.3.6).
func (t *tunnel) viaConnect(ctx context.Context, address string) (net.Conn, error) {
	conn, err := t.connect(ctx)
	if err != nil {
		return nil, err
	}
	through, err := proxydial.Connect(ctx, conn, t.address, address, nil)
	if errors.Is(err, proxydial.ErrNotHTTP) { // but a gRPC server's, it may be
		err = fmt.Errorf("%w; this server has proxyProtocol HTTPConnect: does that one run with --mode=http-connect, or with --mode=grpc?", err)
	}
	return through, err
}
