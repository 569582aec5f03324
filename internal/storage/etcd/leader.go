package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// requireLeader makes a member without a leader reject a request at once. Without this, the member keeps the request
// until the timeout, although other members could execute it.
func requireLeader(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	return invoke(clientv3.WithRequireLeader(ctx), method, request, reply, conn, options...)
}

// requireLeaderOfStream does the same for streams.
func requireLeaderOfStream(
	ctx context.Context, d *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer,
	options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return open(clientv3.WithRequireLeader(ctx), d, conn, method, options...)
}
