package etcd_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// relay is a gRPC server that forwards requests to etcd. A test can change its responses, and so give it the faults
// that etcd had in earlier versions.
type relay struct {
	url    string
	target *grpc.ClientConn

	mu sync.Mutex
	// change returns the messages that replace a response of a method. nil means that nothing changes.
	change func(method string, response []byte) ([][]byte, error)
}

// The methods of etcd that tests change.
const (
	methodGrant       = "/etcdserverpb.Lease/LeaseGrant"
	methodPut         = "/etcdserverpb.KV/Put"
	methodTxn         = "/etcdserverpb.KV/Txn"
	methodRange       = "/etcdserverpb.KV/Range"
	methodRangeStream = "/etcdserverpb.KV/RangeStream"
	methodWatch       = "/etcdserverpb.Watch/Watch"
)

// rawCodec passes messages on as they are.
type rawCodec struct{}

func (rawCodec) Name() string                       { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = slices.Clone(data); return nil }

func newRelay(t *testing.T, url string) *relay {
	t.Helper()
	// The windows are as small as possible, so that etcd cannot send much more than the store has read.
	const window = 64 << 10
	target, err := grpc.NewClient(strings.TrimPrefix(url, "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window), grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{url: "http://" + l.Addr().String(), target: target}
	server := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(r.forward))
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := errors.Join(<-done, target.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *relay) forward(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	header, _ := metadata.FromIncomingContext(ctx)
	out, err := r.target.NewStream(metadata.NewOutgoingContext(ctx, header),
		&grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	go func() {
		for {
			var request []byte
			if err := in.RecvMsg(&request); err != nil {
				_ = out.CloseSend()
				return
			}
			if out.SendMsg(&request) != nil {
				return
			}
		}
	}()
	for {
		var response []byte
		if err := out.RecvMsg(&response); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		responses, err := r.changed(method, response)
		for _, m := range responses {
			if err := in.SendMsg(&m); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

func (r *relay) changed(method string, response []byte) ([][]byte, error) {
	r.mu.Lock()
	change := r.change
	r.mu.Unlock()
	if change == nil {
		return [][]byte{response}, nil
	}
	return change(method, response)
}

// set changes the responses from now on.
func (r *relay) set(change func(method string, response []byte) ([][]byte, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.change = change
}

// errUnimplemented is the error of a server that does not have a method.
var errUnimplemented = status.Error(codes.Unimplemented, "unknown method")

// setWatch replaces each response of watches with events by the result of change.
func (r *relay) setWatch(t *testing.T, change func(*pb.WatchResponse) []*pb.WatchResponse) {
	r.set(func(method string, response []byte) (all [][]byte, err error) {
		if method != methodWatch {
			return [][]byte{response}, nil
		}
		var resp pb.WatchResponse
		if err := proto.Unmarshal(response, &resp); err != nil {
			t.Error(err)
		}
		if len(resp.Events) == 0 {
			return [][]byte{response}, nil
		}
		for _, m := range change(&resp) {
			all = append(all, marshal(t, m))
		}
		return all, nil
	})
}

// setHeaders changes the header of all responses to reads.
func (r *relay) setHeaders(t *testing.T, change func(*pb.ResponseHeader)) {
	r.set(func(method string, response []byte) ([][]byte, error) {
		if method == methodRange {
			var resp pb.RangeResponse
			if err := proto.Unmarshal(response, &resp); err != nil {
				t.Error(err)
			}
			change(resp.Header)
			response = marshal(t, &resp)
		}
		return [][]byte{response}, nil
	})
}

func marshal(t *testing.T, m proto.Message) []byte {
	data, err := proto.Marshal(m)
	if err != nil {
		t.Error(err)
	}
	return data
}

// clone returns a copy of a response with other events.
func clone(resp *pb.WatchResponse, events ...*mvccpb.Event) *pb.WatchResponse {
	c := proto.Clone(resp).(*pb.WatchResponse)
	c.Events = events
	return c
}
