package main

import (
	"fmt"
	"path/filepath"

	"github.com/trellis-k8s/trellis/cluster/internal/node"
)

// nodeParts returns the processes that run the nodes of this machine.
func (u *upCommand) nodeParts() (parts []part) {
	confined := node.Rootless()
	for i := range u.nodeCount {
		name := nodeName(i)
		args := append([]string{"node", "--kubeconfig=" + u.kubeconfig, "--hostname-override=" + name, "--port=0",
			"--root-dir=" + filepath.Join(u.dir, name), "--pod-manifest-path=" +
				filepath.Join(u.dir, name, "manifests")}, u.args()...)
		parts = append(parts, part{name, args, confined})
	}
	return parts
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i+1) }
