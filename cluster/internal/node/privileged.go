package node

import (
	"context"
	"fmt"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// unprivileged is a runtime that rejects privileged containers. The kubelet reports its errors as Events of the Pod.
type unprivileged struct{ internalapi.RuntimeService }

// RunPodSandbox implements internalapi.RuntimeService. The sandbox of a Pod is privileged if one of its containers is.
func (u unprivileged) RunPodSandbox(
	ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string,
) (string, error) {
	if config.GetLinux().GetSecurityContext().GetPrivileged() {
		return "", fmt.Errorf("pod %s/%s has a privileged container, which this node does not permit: "+
			"start the node with --allow-privileged", config.GetMetadata().GetNamespace(),
			config.GetMetadata().GetName())
	}
	return u.RuntimeService.RunPodSandbox(ctx, config, handler)
}

// CreateContainer implements internalapi.RuntimeService. An ephemeral container may be privileged although the sandbox
// of its Pod is not.
func (u unprivileged) CreateContainer(
	ctx context.Context, sandbox string, config *runtimeapi.ContainerConfig, sandboxConfig *runtimeapi.PodSandboxConfig,
) (string, error) {
	if config.GetLinux().GetSecurityContext().GetPrivileged() {
		return "", fmt.Errorf("container %s is privileged, which this node does not permit: "+
			"start the node with --allow-privileged", config.GetMetadata().GetName())
	}
	return u.RuntimeService.CreateContainer(ctx, sandbox, config, sandboxConfig)
}
