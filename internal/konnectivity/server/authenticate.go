package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
)

// Account is the ServiceAccount that agents must have, and the audience of their tokens.
type Account struct {
	Audience, Namespace, Name string
}

// Authenticate returns a function that requests a review of an agent's token from the API server. The function
// returns nil if the token is valid for this ServiceAccount and audience. Otherwise it returns an error for the
// log, which does not contain the token.
func (a Account) Authenticate(reviews clientv1.TokenReviewInterface) func(ctx context.Context, token string) error {
	return func(ctx context.Context, token string) error {
		if err := a.review(ctx, reviews, token); err != nil {
			return errors.New(strings.ReplaceAll(err.Error(), token, "[token]"))
		}
		return nil
	}
}

func (a Account) review(ctx context.Context, reviews clientv1.TokenReviewInterface, token string) error {
	review := &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{a.Audience}},
	}
	done, err := reviews.Create(ctx, review, metav1.CreateOptions{})
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("the token was not reviewed: %w "+
			"(the user of --kubeconfig needs the ClusterRole system:auth-delegator)", err)
	}
	if err != nil {
		return fmt.Errorf("the token was not reviewed: %w", err)
	}
	return a.checkStatus(done.Status)
}

// checkStatus checks the result of a review against the account and the audience.
func (a Account) checkStatus(s authenticationv1.TokenReviewStatus) error {
	if !s.Authenticated {
		return fmt.Errorf("the token is not valid for the audience %q: %s", a.Audience, s.Error)
	}
	if !slices.Contains(s.Audiences, a.Audience) { // an API server without support for audiences omits them
		return fmt.Errorf("the token is for the audiences %q, not for %q", s.Audiences, a.Audience)
	}
	account, isAccount := strings.CutPrefix(s.User.Username, "system:serviceaccount:")
	namespace, name, _ := strings.Cut(account, ":")
	switch {
	case !isAccount:
		return fmt.Errorf("the token belongs to user %q, not to a ServiceAccount", s.User.Username)
	case namespace != a.Namespace:
		return fmt.Errorf("the token belongs to a ServiceAccount in namespace %q, not in %q", namespace, a.Namespace)
	case name != a.Name:
		return fmt.Errorf("the token belongs to ServiceAccount %q, not to %q", name, a.Name)
	}
	return nil
}
