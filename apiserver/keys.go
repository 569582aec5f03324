package apiserver

import (
	"bytes"
	"errors"
	"fmt"

	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/ownership"
	"github.com/trellis-k8s/trellis/internal/serving"
)

// makeKeys reads what the server has made for itself, or makes it.
func (s *Server) makeKeys() error {
	others := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		kinds.ServiceIP(s.config.ServiceClusterIPRanges[0])} // the last is that by which clients inside a cluster would know the API
	if ip := s.config.AdvertiseAddress; ip != nil && !ip.IsUnspecified() { // which stands for one that Hosts has, as with kube-apiserver
		others = append(others, ip.String())
	}
	return s.keys.Make(s.certificates, s.path("pki"), serving.Hosts(s.listener.Addr(), others...), s.config.Clock.Now())
}

// renewKeys replaces certificates that end soon.
func (s *Server) renewKeys() error {
	if err := s.keys.Renew(s.config.Clock.Now()); err != nil {
		return err
	}
	return s.writeKubeconfig()
}

func (s *Server) writeKubeconfig() error {
	path := s.path(KubeconfigName)
	if path == "" {
		return nil
	}
	data := s.Kubeconfig()
	old, err := ownership.ReadKey(path)
	if untrusted := (*ownership.Error)(nil); errors.As(err, &untrusted) {
		return err
	}
	if err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := pki.WriteFile(path, data); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	return nil
}

// Kubeconfig is the administrator's, as a file would hold it.
func (s *Server) Kubeconfig() []byte { return s.keys.Load().Kubeconfig(s.URL(), s.serverName()) }

// ClientConfig is for an administrator's client that connects over HTTPS.
func (s *Server) ClientConfig() *rest.Config {
	keys := s.keys.Load()
	return &rest.Config{
		Host: s.URL(),
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: s.serverName(), CAData: keys.CAPEM, CertData: keys.AdminCert, KeyData: keys.AdminKey,
		},
	}
}

// serverName is that by which the administrator asks for the server's own certificate; "" where there is no other.
func (s *Server) serverName() string {
	if s.config.TLS.IsSet() {
		return serving.LoopbackName
	}
	return ""
}
