package selector

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/trellis-k8s/trellis/internal/proxydial"
)

// viaConnect opens a connection to the tunnel server and dials address through it with HTTP CONNECT (RFC 9110, section
// 9.3.6).
func (t *tunnel) viaConnect(ctx context.Context, address string) (net.Conn, error) {
	conn, err := t.connect(ctx)
	if err != nil {
		return nil, err
	}
	conn, err = proxydial.Connect(ctx, conn, t.address, address, nil)
	if errors.Is(err, proxydial.ErrNotHTTP) { // for example, a tunnel server in the mode grpc
		err = fmt.Errorf("%w; %s", err, hintConnect)
	}
	return conn, err
}
