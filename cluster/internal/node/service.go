package node

import (
	"bytes"
	"context"
	"fmt"
	"net"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// serviceEnvironment is a runtime whose containers find the API server at an address of its own: the one of the Service that the
// kubelet tells them answers only where something routes it.
type serviceEnvironment struct {
	internalapi.RuntimeService
	host, port string
	onHost     bool // for the Pods of the host's network alone: others are at the device of a relay
}

func newServiceEnvironment(r internalapi.RuntimeService, address string, onHost bool) (internalapi.RuntimeService, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("address of the API server for Pods: %w", err)
	}
	return serviceEnvironment{r, host, port, onHost}, nil
}

// CreateContainer changes the two variables, unless the Pod itself has said what they are.
func (s serviceEnvironment) CreateContainer(ctx context.Context, sandbox string, config *runtimeapi.ContainerConfig, sandboxConfig *runtimeapi.PodSandboxConfig) (string, error) {
	if s.onHost && sandboxConfig.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		return s.RuntimeService.CreateContainer(ctx, sandbox, config, sandboxConfig)
	}
	of := map[string]*runtimeapi.KeyValue{}
	for _, v := range config.GetEnvs() {
		of[v.Key] = v
	}
	set := func(name, kubelets, to string) {
		if v := of[name]; v != nil && bytes.Equal(v.Value, of[kubelets].GetValue()) {
			v.Value = []byte(to)
		}
	}
	// KUBERNETES_PORT_443_TCP_* say what the kubelet has given the other two.
	set("KUBERNETES_SERVICE_HOST", "KUBERNETES_PORT_443_TCP_ADDR", s.host)
	set("KUBERNETES_SERVICE_PORT", "KUBERNETES_PORT_443_TCP_PORT", s.port)
	set("KUBERNETES_SERVICE_PORT_HTTPS", "KUBERNETES_PORT_443_TCP_PORT", s.port)
	return s.RuntimeService.CreateContainer(ctx, sandbox, config, sandboxConfig)
}
