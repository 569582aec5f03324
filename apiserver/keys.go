package apiserver

import (
	"bytes"
	"errors"
	"fmt"

	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/kinds/services"
	"github.com/trellis-k8s/trellis/internal/ownership"
	"github.com/trellis-k8s/trellis/internal/serving"
)

// openKeys reads the server's own keys and certificates, or creates them.
func (s *Server) openKeys() error {
	others := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local",
		services.ServerIP(s.config.ServiceClusterIPRanges[0])} // the last is the cluster IP of the Service kubernetes
	// as in kube-apiserver; an unspecified address means one of Hosts
	if ip := s.config.AdvertiseAddress; ip != nil && !ip.IsUnspecified() {
		others = append(others, ip.String())
	}
	return s.keys.Make(s.certificates, s.path("pki"), serving.Hosts(s.listener.Addr(), others...), s.config.Clock.Now())
}

// renewKeys replaces certificates that expire soon.
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

// Kubeconfig returns the content of the administrator's kubeconfig.
func (s *Server) Kubeconfig() []byte { return s.keys.Load().Kubeconfig(s.URL(), s.serverName()) }

// ClientConfig returns the configuration of an administrator's client over HTTPS.
func (s *Server) ClientConfig() *rest.Config {
	keys := s.keys.Load()
	return &rest.Config{
		Host: s.URL(),
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: s.serverName(), CAData: keys.CAPEM, CertData: keys.AdminCert, KeyData: keys.AdminKey,
		},
	}
}

// serverName returns the TLS server name (SNI) with which clients select the server's own certificate. It returns ""
// if no other certificate is configured.
func (s *Server) serverName() string {
	if s.config.TLS.IsSet() {
		return serving.LoopbackName
	}
	return ""
}
