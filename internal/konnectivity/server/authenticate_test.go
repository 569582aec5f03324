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

// reviewer is an API server that is made to say something.
type reviewer struct {
	clientv1.TokenReviewInterface
	answer func(*authenticationv1.TokenReview) error
}

func (r reviewer) Create(_ context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	return review, r.answer(review)
}

func reviewed(answer func(*authenticationv1.TokenReview) error) func(context.Context, string) error {
	return agentAccount.Authenticate(reviewer{answer: answer})
}

// KON-045: an API server that knows of no audiences, or answers with a user that is no ServiceAccount, makes nobody an agent; and
// one that repeats the token does not get it into a message.
func TestOddReviews(t *testing.T) {
	for _, c := range []struct {
		want   string
		answer func(*authenticationv1.TokenReview) error
	}{
		{"is for the audiences", func(r *authenticationv1.TokenReview) error {
			r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "system:serviceaccount:kube-system:konnectivity-agent"}}
			return nil
		}},
		{"not of a ServiceAccount", func(r *authenticationv1.TokenReview) error {
			r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: r.Spec.Audiences, User: authenticationv1.UserInfo{Username: "konnectivity-agent"}}
			return nil
		}},
		{"[token] is bad", func(r *authenticationv1.TokenReview) error {
			r.Status.Error = r.Spec.Token + " is bad"
			return nil
		}},
		{"[token] is worse", func(r *authenticationv1.TokenReview) error { return errors.New(r.Spec.Token + " is worse") }},
	} {
		err := reviewed(c.answer)(t.Context(), "secret")
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}
