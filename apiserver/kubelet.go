package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/proxy/nodes"
)

// Kubelet is how the server reaches the kubelets of nodes, for logs, commands and the like.
type Kubelet struct {
	// CAFile is who signs their certificates; "": the server's own CA.
	CAFile string
	// CertFile and KeyFile are the certificate, read again when it changes, that proves to them who asks; "": one of the server's own CA.
	CertFile, KeyFile string
	// PreferredAddressTypes are those of a node, the preferred first; nil: KubeletAddressTypes.
	PreferredAddressTypes []string
	Timeout               time.Duration // of connecting; 0: five seconds
}

// KubeletAddressTypes is the order that kubeadm gives kube-apiserver: by its own default that has to know the names of nodes.
func KubeletAddressTypes() []string {
	return []string{string(corev1.NodeInternalIP), string(corev1.NodeExternalIP), string(corev1.NodeHostName), string(corev1.NodeInternalDNS), string(corev1.NodeExternalDNS)}
}

// openNodes makes the way to nodes, Pods and what runs in them.
func (s *Server) openNodes(out *egress.Dialer) (err error) {
	c, cas := s.config.Kubelet, s.keys.Load().CAPEM
	if c.CAFile != "" {
		if cas, err = os.ReadFile(c.CAFile); err != nil {
			return fmt.Errorf("--kubelet-certificate-authority: %w", err)
		}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(cas) {
		return fmt.Errorf("--kubelet-certificate-authority: %s has no certificate", c.CAFile)
	}
	family := corev1.IPv4Protocol
	if s.config.ServiceClusterIPRanges[0].Addr().Is6() {
		family = corev1.IPv6Protocol
	}
	s.nodes = nodes.New(nodes.Config{
		Dialer:  out,
		Kubelet: nodes.Kubelet{CAs: pool, Certificate: s.kubeletCertificate, AddressTypes: c.PreferredAddressTypes, Timeout: c.Timeout},
		Get:     s.coreObject, Slices: s.services().Slices, Family: family, Headers: s.headers().Default(),
	})
	return nil
}

// kubeletCertificate is who the server is to kubelets.
func (s *Server) kubeletCertificate() (*tls.Certificate, error) {
	return given("--kubelet-client-certificate", s.kubeletClient, func() *tls.Certificate { return &s.keys.Load().Kubelet })
}

// coreObject is an object of the core group in its internal form, as it is now.
func (s *Server) coreObject(ctx context.Context, plural, namespace, name string) (runtime.Object, error) {
	v := s.definition("", plural).Storage
	found, err := s.engine.Get(ctx, engine.Target{Version: v, Namespace: namespace, Name: name}, "")
	if err != nil {
		return nil, err
	}
	return v.Type.Load(found.AppendJSON(nil))
}
