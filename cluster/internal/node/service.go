package node

import (
	"bytes"
	"context"
	"fmt"
	"net"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// serviceEnvironment is a runtime that sets the address of the API server in the environment of containers. The
// kubelet sets the address of the Service `kubernetes` instead, which may not be reachable on this node.
type serviceEnvironment struct {
	internalapi.RuntimeService
	host, port      string
	hostNetworkOnly bool // change only Pods in the host's network: other Pods reach the relay of the node
}

func newServiceEnvironment(
	r internalapi.RuntimeService, address string, hostNetworkOnly bool,
) (internalapi.RuntimeService, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("invalid address of the API server for Pods: %w", err)
	}
	return serviceEnvironment{r, host, port, hostNetworkOnly}, nil
}

// CreateContainer implements internalapi.RuntimeService. It changes the variables that contain the address, unless the
// Pod sets them.
func (s serviceEnvironment) CreateContainer(
	ctx context.Context, sandbox string, config *runtimeapi.ContainerConfig, sandboxConfig *runtimeapi.PodSandboxConfig,
) (string, error) {
	network := sandboxConfig.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork()
	if s.hostNetworkOnly && network != runtimeapi.NamespaceMode_NODE {
		return s.RuntimeService.CreateContainer(ctx, sandbox, config, sandboxConfig)
	}
	vars := map[string]*runtimeapi.KeyValue{}
	for _, v := range config.GetEnvs() {
		vars[v.Key] = v
	}
	set := func(name, source, value string) {
		if v := vars[name]; v != nil && bytes.Equal(v.Value, vars[source].GetValue()) {
			v.Value = []byte(value)
		}
	}
	// KUBERNETES_PORT_443_TCP_* contain the kubelet's values. If a variable below has another value, the Pod has set
	// it.
	set("KUBERNETES_SERVICE_HOST", "KUBERNETES_PORT_443_TCP_ADDR", s.host)
	set("KUBERNETES_SERVICE_PORT", "KUBERNETES_PORT_443_TCP_PORT", s.port)
	set("KUBERNETES_SERVICE_PORT_HTTPS", "KUBERNETES_PORT_443_TCP_PORT", s.port)
	return s.RuntimeService.CreateContainer(ctx, sandbox, config, sandboxConfig)
}
