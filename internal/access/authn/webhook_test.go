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

// A webhook is told which audiences a token has to be for, and a token that it says is for others is refused.
func TestWebhookIsToldTheAudiences(t *testing.T) {
	asked := map[string][]string{} // the audiences, by token
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		token := review.Spec.Token
		asked[token] = review.Spec.Audiences
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "jane"}, Audiences: []string{token}}
		_ = json.NewEncoder(w).Encode(review) // a client that has gone fails by itself
	}))
	t.Cleanup(s.Close)
	w := newWorld(t)
	ca := w.file("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	kubeconfig := w.file("kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: a}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
`, s.URL, ca))
	a := w.open(Config{APIAudiences: []string{"us"}, Webhook: Webhook{ConfigFile: kubeconfig, Version: "v1"}})
	w.expect(a, "/apis", "us", "jane")
	w.expect(a, "/apis", "others", "")
	refuse := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no way out") }
	w.expect(w.open(Config{Webhook: Webhook{ConfigFile: kubeconfig, Version: "v1"}, Dial: refuse}), "/apis", "us", "")
	for _, token := range []string{"us", "others"} {
		if got := asked[token]; len(got) != 1 || got[0] != "us" {
			t.Errorf("asked about a token for %s with audiences %q", token, got)
		}
	}
}
