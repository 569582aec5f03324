// Package credentials reads the kubeconfigs that contain the credentials for webhooks. It opens no connection, and must
// not import the packages that call webhooks.
package credentials

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"

	"github.com/trellis-k8s/trellis/internal/egress"
)

// Source finds the credentials for a webhook in a kubeconfig. A nil Source has no credentials.
type Source struct {
	resolver webhook.AuthenticationInfoResolver
	users    map[string]*api.AuthInfo
	// conversion is true if the rules of ForConversion apply.
	conversion bool
}

// ForAdmission reads the kubeconfig for admission webhooks. It selects users as kube-apiserver does: by host and
// port, by host for port 443, by wildcards, and finally the user of the current context. If file is "", it returns
// nil.
func ForAdmission(file string) (*Source, error) {
	if file == "" {
		return nil, nil
	}
	s, err := read(file)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	return s, nil
}

// read reads a kubeconfig and the files that its users refer to.
func read(file string) (*Source, error) {
	resolver, err := webhook.NewDefaultAuthenticationInfoResolver(file)
	if err != nil {
		return nil, err
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}
	config, err := rules.Load()
	if err != nil {
		return nil, err
	}
	s := &Source{resolver: resolver, users: config.AuthInfos}
	for _, name := range slices.Sorted(maps.Keys(s.users)) {
		if err := s.check(name); err != nil {
			return nil, fmt.Errorf("user %q: %w", name, err)
		}
	}
	return s, nil
}

// check returns an error if the credentials of a user cannot be used.
func (s *Source) check(name string) error {
	user := s.users[name]
	if hasCertificate(user) != (user.ClientKey != "" || len(user.ClientKeyData) > 0) {
		return errors.New("client-certificate and client-key must be set together")
	}
	config, certificate, err := s.config(name)
	if err != nil {
		return err
	}
	if hasCertificate(user) {
		if _, err := certificate(); err != nil {
			return err
		}
	}
	_, err = transport.HTTPWrappersForConfig(config, http.DefaultTransport)
	return err
}

func hasCertificate(user *api.AuthInfo) bool {
	return user.ClientCertificate != "" || len(user.ClientCertificateData) > 0
}

// config returns the credentials for target, which is a host and port or the name of a user. The function
// certificate returns the client certificate, and reads its files again when they change. It is nil if there is no
// client certificate.
func (s *Source) config(
	target string,
) (config *transport.Config, certificate func() (*tls.Certificate, error), err error) {
	found, err := s.resolver.ClientConfigFor(target)
	if err != nil {
		return nil, nil, err
	}
	found.UserAgent = "" // the User-Agent is not a credential
	if config, err = found.TransportConfig(); err != nil {
		return nil, nil, err
	}
	of, err := transport.TLSConfigFor(config)
	if err != nil {
		return nil, nil, err
	}
	if of != nil && of.GetClientCertificate != nil {
		certificate = func() (*tls.Certificate, error) { return of.GetClientCertificate(nil) }
	}
	return config, certificate, nil
}

// Add adds credentials to o: those for the webhook that is the destination of o.
func (s *Source) Add(o *egress.Options) error {
	if s == nil {
		return nil
	}
	target, service := o.Address, o.Service != nil
	if service {
		target = o.Service.HostPort()
	}
	if s.conversion {
		if target = s.userFor(target); target == "" {
			return nil
		}
	}
	config, certificate, err := s.config(target)
	if err != nil {
		return err
	}
	if o.Certificate = certificate; config.TLS.ReloadTLSFiles {
		o.Rotations = (&rotations{certificate: certificate}).count
	}
	if service || !s.conversion {
		o.Wrap = func(t *egress.Transport) (http.RoundTripper, error) {
			return transport.HTTPWrappersForConfig(config, t)
		}
	}
	return nil
}

// userFor returns the user whose name is target, a host and port. If the port is 443, the name may also be the
// host alone. userFor returns "" if no user has such a name.
func (s *Source) userFor(target string) (user string) {
	host, port, err := net.SplitHostPort(target)
	switch {
	case wildcard(target):
	case s.users[target] != nil:
		return target
	case err == nil && port == "443" && s.users[host] != nil:
		return host
	}
	return ""
}
