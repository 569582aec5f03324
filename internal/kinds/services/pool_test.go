package services

import (
	"context"
	"testing"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
)

// TestNodePortsAreGuarded checks that the commit of a Service fails if another Service has acquired its node port
// before the commit (EXT-020).
func TestNodePortsAreGuarded(t *testing.T) {
	store, err := embedded.Open(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	p, ctx := NewPool(store.Head, nil, utilnet.PortRange{}), context.Background()
	commit := func(name string, guards ...storage.Guard) error {
		_, err := store.Commit(ctx,
			[]storage.Write{
				{Key: serviceKey("ns", name), Value: object.Pack(serviceWithNodePort(name), 0).JSON()},
			}, guards...)
		return err
	}
	early := p.Guards(ctx, serviceWithNodePort("late"))
	if err := commit("first", p.Guards(ctx, serviceWithNodePort("first"))...); err != nil {
		t.Fatal(err)
	}
	for _, guards := range [][]storage.Guard{early, p.Guards(ctx, serviceWithNodePort("late"))} {
		if err := commit("late", guards...); err == nil {
			t.Fatal("a node port was allocated twice")
		}
	}
}

// serviceWithNodePort returns a Service with the node port 30007.
func serviceWithNodePort(name string) object.Tree {
	return object.Tree{"apiVersion": "v1", "kind": "Service", "metadata": object.Tree{"name": name, "namespace": "ns"},
		"spec": object.Tree{"ports": []any{object.Tree{"port": int64(80), "nodePort": int64(30007)}}}}
}
