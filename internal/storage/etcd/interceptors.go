package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// interceptUnary makes a member without a leader reject a request at once. Without this, the member keeps the request
// until the timeout, although other members could execute it. It checks the members if there is no response.
func (s *Store) interceptUnary(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	defer s.expectResponse().Stop()
	return invoke(clientv3.WithRequireLeader(ctx), method, request, reply, conn, options...)
}

// requireLeader makes a member without a leader reject a stream at once, and end it when the member loses its leader.
func requireLeader(
	ctx context.Context, d *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer,
	options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return open(clientv3.WithRequireLeader(ctx), d, conn, method, options...)
}
