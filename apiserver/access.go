package apiserver

import (
	"context"
	"net/http"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/access/authn"
	"github.com/trellis-k8s/trellis/internal/access/authz"
	"github.com/trellis-k8s/trellis/internal/access/rbac"
	"github.com/trellis-k8s/trellis/internal/kinds/accounts"
)

// openAuthentication creates the authenticators and starts the goroutine that reloads their files.
func (s *Server) openAuthentication() (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	s.stopAuthReload = cancel
	keys := s.keys.Load()
	s.authn, err = authn.New(ctx, s.config.Authentication, keys.CAPEM, keys.AccountKey,
		accounts.TokenGetter(s.store.Head), secrets{s})
	if err != nil {
		return err
	}
	s.authReload.Go(func() { s.authn.Run(ctx, s.report) })
	return nil
}

// secrets accesses Secrets through the server's own API. It must not be called before the server serves.
type secrets struct{ *Server }

// Secrets implements v1.SecretsGetter.
func (s secrets) Secrets(namespace string) v1.SecretInterface {
	return v1.NewForConfigOrDie(s.Loopback()).Secrets(namespace)
}

// openAuthorization creates the authorizers.
func (s *Server) openAuthorization() (err error) {
	s.roles = rbac.New(s.store.Head)
	s.authorizer, err = authz.New(s.config.Authorization, s.roles, func() informers.SharedInformerFactory {
		later := transport(func(r *http.Request) (*http.Response, error) {
			return s.Loopback().Transport.RoundTrip(r) // the informers start after the handler exists
		})
		return informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(&rest.Config{Host: s.URL(),
			Transport: later, QPS: -1}), 0)
	})
	return err
}

// report logs an error.
func (s *Server) report(err error) { s.config.Logger.Error(err.Error()) }

// issuer returns the handler for the discovery documents of the service account issuer. If the configured issuer
// cannot have discovery documents, it logs a warning and returns nil.
func (s *Server) issuer() http.Handler {
	h, err := s.authn.IssuerHandler(s.config.Authentication.Accounts, s.listener.Addr().String())
	if err != nil {
		s.config.Logger.Warn(err.Error())
		return nil
	}
	return h
}

// transport is a function that implements http.RoundTripper.
type transport func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }
