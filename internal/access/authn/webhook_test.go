package authn

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// TestWebhookReceivesAudiences checks that the webhook receives the audiences of the server, and that a token is
// rejected if the webhook returns other audiences.
func TestWebhookReceivesAudiences(t *testing.T) {
	audiences := map[string][]string{} // by token
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		token := review.Spec.Token
		audiences[token] = review.Spec.Audiences
		review.Status = authenticationv1.TokenReviewStatus{
			Authenticated: true, User: authenticationv1.UserInfo{Username: "jane"}, Audiences: []string{token},
		}
		_ = json.NewEncoder(w).Encode(review) // the test fails if the client has disconnected
	}))
	t.Cleanup(s.Close)
	fx := newFixture(t)
	ca := fx.file("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	kubeconfig := fx.file("kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: a}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
`, s.URL, ca))
	a := fx.newAuthenticators(Config{
		APIAudiences: []string{"us"}, Webhook: Webhook{ConfigFile: kubeconfig, Version: "v1"},
	})
	fx.expect(a, "/apis", "us", "jane")
	fx.expect(a, "/apis", "others", "")
	refuse := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("dial refused") }
	unreachable := fx.newAuthenticators(Config{Webhook: Webhook{ConfigFile: kubeconfig, Version: "v1"}, Dial: refuse})
	fx.expect(unreachable, "/apis", "us", "")
	for _, token := range []string{"us", "others"} {
		if got := audiences[token]; len(got) != 1 || got[0] != "us" {
			t.Errorf("review of token %s: got audiences %q, want us", token, got)
		}
	}
}
