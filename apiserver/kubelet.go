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

	"github.com/spf13/pflag"

	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/flags"
	"github.com/trellis-k8s/trellis/internal/proxy/nodes"
)

// Kubelet configures the connections to the kubelets of nodes, for logs, exec and similar requests.
type Kubelet struct {
	// CAFile holds the CAs of the kubelets' certificates. "" means the server's own CA.
	CAFile string
	// CertFile and KeyFile hold the client certificate for kubelets. The files are reloaded when they change. "" means
	// a certificate of the server's own CA.
	CertFile, KeyFile string
	// PreferredAddressTypes lists the types of node addresses to connect to, in order of preference. nil means
	// KubeletAddressTypes.
	PreferredAddressTypes []string
	Timeout               time.Duration // timeout to connect; 0 means five seconds
}

// KubeletAddressTypes returns the order that kubeadm configures for kube-apiserver. kube-apiserver's own default needs
// node names that DNS resolves.
func KubeletAddressTypes() []string {
	return []string{string(corev1.NodeInternalIP), string(corev1.NodeExternalIP), string(corev1.NodeHostName),
		string(corev1.NodeInternalDNS), string(corev1.NodeExternalDNS)}
}

// AddFlags declares the flags.
func (k *Kubelet) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&k.CAFile, "kubelet-certificate-authority", "",
		"file of CAs for the serving certificates of kubelets (empty means the CA in the data directory)")
	fs.StringVar(&k.CertFile, "kubelet-client-certificate", "",
		"file of the client certificate for kubelets (empty means a certificate of the CA in the data directory)")
	fs.StringVar(&k.KeyFile, "kubelet-client-key", "", "file of the private key of --kubelet-client-certificate")
	flags.Pair(fs, "kubelet-client-certificate", "kubelet-client-key")
	fs.StringSliceVar(&k.PreferredAddressTypes, "kubelet-preferred-address-types", KubeletAddressTypes(),
		"types of the node addresses to connect to, in order of preference")
	fs.DurationVar(&k.Timeout, "kubelet-timeout", 5*time.Second, "timeout for a connection to a kubelet")
}

// openNodes creates the proxy to kubelets, Pods and Services.
func (s *Server) openNodes(out *egress.Dialer) (err error) {
	c, cas := s.config.Kubelet, s.keys.Load().CAPEM
	if c.CAFile != "" {
		if cas, err = os.ReadFile(c.CAFile); err != nil {
			return fmt.Errorf("--kubelet-certificate-authority: %w", err)
		}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(cas) {
		return fmt.Errorf("--kubelet-certificate-authority: %s contains no certificate", c.CAFile)
	}
	family := corev1.IPv4Protocol
	if s.config.ServiceClusterIPRanges[0].Addr().Is6() {
		family = corev1.IPv6Protocol
	}
	s.nodes = nodes.New(nodes.Config{
		Dialer: out,
		Kubelet: nodes.Kubelet{CAs: pool, Certificate: s.kubeletCertificate, AddressTypes: c.PreferredAddressTypes,
			Timeout: c.Timeout},
		Get: s.coreObject, Slices: s.services().Slices, Family: family, Headers: s.headers().Default(),
	})
	return nil
}

// kubeletCertificate returns the client certificate for kubelets.
func (s *Server) kubeletCertificate() (*tls.Certificate, error) {
	return clientCertificate("--kubelet-client-certificate", s.kubeletClient,
		func() *tls.Certificate { return &s.keys.Load().Kubelet })
}

// coreObject returns the latest state of an object of the core group, in its internal version.
func (s *Server) coreObject(ctx context.Context, plural, namespace, name string) (runtime.Object, error) {
	v := s.definition("", plural).Storage
	found, err := s.engine.Get(ctx, verb.Target{Version: v, Namespace: namespace, Name: name}, "")
	if err != nil {
		return nil, err
	}
	return v.Type.Load(found.AppendJSON(nil))
}
