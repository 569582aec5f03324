package server

import (
	"context"
	"errors"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
)

var agentAccount = Account{Audience: "system:konnectivity-server", Namespace: "kube-system", Name: "konnectivity-agent"}

// reviewer is an API server. The function respond sets the result of a review.
type reviewer struct {
	clientv1.TokenReviewInterface
	respond func(*authenticationv1.TokenReview) error
}

func (r reviewer) Create(_ context.Context, review *authenticationv1.TokenReview,
	_ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	return review, r.respond(review)
}

func authenticatorOf(respond func(*authenticationv1.TokenReview) error) func(context.Context, string) error {
	return agentAccount.Authenticate(reviewer{respond: respond})
}

// TestUnusualReviews checks that an agent is rejected if the API server ignores audiences, or returns a user that
// is not a ServiceAccount. If the API server repeats the token in its error, the message does not contain the
// token (KON-045).
func TestUnusualReviews(t *testing.T) {
	for _, c := range []struct {
		want    string
		respond func(*authenticationv1.TokenReview) error
	}{
		{"is for the audiences", func(r *authenticationv1.TokenReview) error {
			r.Status = authenticationv1.TokenReviewStatus{Authenticated: true,
				User: authenticationv1.UserInfo{Username: "system:serviceaccount:kube-system:konnectivity-agent"}}
			return nil
		}},
		{"not to a ServiceAccount", func(r *authenticationv1.TokenReview) error {
			r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: r.Spec.Audiences,
				User: authenticationv1.UserInfo{Username: "konnectivity-agent"}}
			return nil
		}},
		{"[token] is bad", func(r *authenticationv1.TokenReview) error {
			r.Status.Error = r.Spec.Token + " is bad"
			return nil
		}},
		{"[token] is worse", func(r *authenticationv1.TokenReview) error {
			return errors.New(r.Spec.Token + " is worse")
		}},
	} {
		err := authenticatorOf(c.respond)(t.Context(), "secret")
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}
