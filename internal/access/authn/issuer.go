package authn

import (
	"fmt"
	"net/http"

	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trellis-k8s/trellis/internal/access"
)

// IssuerHandler serves the documents by which others recognize tokens of service accounts
// (https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/#service-account-issuer-discovery), at
// their paths. address is where clients reach this server, host and port. The error says why the issuer cannot have such documents.
func (a *Authenticators) IssuerHandler(c Accounts, address string) (http.Handler, error) {
	issuer := DefaultIssuer
	if len(c.Issuers) > 0 {
		issuer = c.Issuers[0]
	}
	provider, err := serviceaccount.NewOpenIDMetadataProvider(issuer, c.JWKSURI, address, a.PublicKeys)
	if err != nil {
		return nil, fmt.Errorf("documents of the issuer of service account tokens: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+access.ConfigurationPath, document("application/json", provider.GetConfigJSON))
	mux.Handle("GET "+access.KeysPath, document("application/jwk-set+json", provider.GetKeysetJSON))
	return mux, nil
}

// document serves what read returns, which may be kept for so many seconds.
func document(mediaType string, read func() (data []byte, maxAge int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		data, maxAge := read()
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", maxAge))
		_, _ = w.Write(data) // the client has gone; there is nobody to tell
	})
}
