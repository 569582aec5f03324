package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/trellis-k8s/trellis/cluster/internal/node"
)

// nodes starts as many nodes, a process each, which end with this one.
func (m *machine) nodes(ctx context.Context, parts *errgroup.Group, n int, kubeconfig string) {
	for i := range n {
		name := nodeName(i)
		args := append([]string{"node", "--kubeconfig=" + kubeconfig, "--hostname-override=" + name, "--port=0",
			"--root-dir=" + filepath.Join(m.dir, name), "--pod-manifest-path=" + filepath.Join(m.dir, name, "manifests")}, m.args()...)
		parts.Go(func() error {
			if err := node.Spawn(ctx, os.Stderr, args...); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i+1) }
