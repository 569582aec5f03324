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
	"github.com/trellis-k8s/trellis/internal/kinds"
)

// believe decides whom the server believes.
func (s *Server) believe() (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	s.disbelieve = cancel
	keys := s.keys.Load()
	s.authn, err = authn.New(ctx, s.config.Authentication, keys.CAPEM, keys.AccountKey, kinds.TokenGetter(s.store.Head), secrets{s})
	if err != nil {
		return err
	}
	s.believing.Go(func() { s.authn.Run(ctx, s.report) })
	return nil
}

// secrets writes Secrets through the API of a server that serves by then.
type secrets struct{ *Server }

// Secrets implements v1.SecretsGetter.
func (s secrets) Secrets(namespace string) v1.SecretInterface {
	return v1.NewForConfigOrDie(s.Loopback()).Secrets(namespace)
}

// decide decides who may do what.
func (s *Server) decide() (err error) {
	s.roles = rbac.New(s.store.Head)
	s.authorizer, err = authz.New(s.config.Authorization, s.roles, func() informers.SharedInformerFactory {
		later := transport(func(r *http.Request) (*http.Response, error) {
			return s.Loopback().Transport.RoundTrip(r) // there is one by the time that somebody asks
		})
		return informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(&rest.Config{Host: s.URL(), Transport: later, QPS: -1}), 0)
	})
	return err
}

// report tells the operator of an error.
func (s *Server) report(err error) { s.config.Logger.Error(err.Error()) }

// issuer serves the documents of who makes the tokens of service accounts, if it can have any.
func (s *Server) issuer() http.Handler {
	h, err := s.authn.IssuerHandler(s.config.Authentication.Accounts, s.listener.Addr().String())
	if err != nil {
		s.config.Logger.Warn(err.Error())
		return nil
	}
	return h
}

// transport is a round tripper.
type transport func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }
