package authn

import (
	"fmt"
	"net/http"

	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trellis-k8s/trellis/internal/access"
)

// IssuerHandler returns a handler of the discovery documents of the service account issuer, at
// access.ConfigurationPath and access.KeysPath. Clients verify service account tokens with them. address is the host
// and port at which clients reach this server. IssuerHandler returns an error if the configured issuer does not allow
// such documents. See
// https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/#service-account-issuer-discovery.
func (a *Authenticators) IssuerHandler(c Accounts, address string) (http.Handler, error) {
	issuer := DefaultIssuer
	if len(c.Issuers) > 0 {
		issuer = c.Issuers[0]
	}
	provider, err := serviceaccount.NewOpenIDMetadataProvider(issuer, c.JWKSURI, address, a.PublicKeys)
	if err != nil {
		return nil, fmt.Errorf("create discovery documents of the service account issuer: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+access.ConfigurationPath, document("application/json", provider.GetConfigJSON))
	mux.Handle("GET "+access.KeysPath, document("application/jwk-set+json", provider.GetKeysetJSON))
	return mux, nil
}

// document returns a handler of the data that read returns. maxAge is the time in seconds for which clients may cache
// it.
func document(mediaType string, read func() (data []byte, maxAge int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		data, maxAge := read()
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", maxAge))
		_, _ = w.Write(data) // an error means that the client has disconnected
	})
}
