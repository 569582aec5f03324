package apiserver

import (
	"context"

	"k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/trellis-k8s/trellis/internal/access/authn"
	"github.com/trellis-k8s/trellis/internal/builtin"
)

// believe decides whom the server believes.
func (s *Server) believe() (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	s.stopBelieving = cancel
	s.authn, err = authn.New(ctx, s.config.Authentication, s.keys.CAPEM, s.keys.AccountKey, builtin.Accounts(s.store.Head), secrets{s})
	if err != nil {
		return err
	}
	s.following.Go(func() { s.authn.Run(ctx) })
	return nil
}

// secrets writes Secrets through the API of a server that serves by then.
type secrets struct{ *Server }

// Secrets implements v1.SecretsGetter.
func (s secrets) Secrets(namespace string) v1.SecretInterface {
	return v1.NewForConfigOrDie(s.Loopback()).Secrets(namespace)
}
