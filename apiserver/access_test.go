package apiserver_test

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/testserver"
)

// AGG-033 AGG-038: a TokenReview says whose token it is, if it is for whom the review asks; the token opens the door by itself, too.
func TestTokenReview(t *testing.T) {
	s := testserver.Start(t)
	client, ctx := kubernetes.NewForConfigOrDie(s.Config), t.Context()
	accounts := client.CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	request, err := accounts.CreateToken(ctx, "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for audience, want := range map[string]bool{"": true, "https://kubernetes.default.svc.cluster.local": true, "others": false} {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: request.Status.Token}}
		if audience != "" {
			review.Spec.Audiences = []string{audience}
		}
		got, err := client.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Status.Authenticated != want || want && got.Status.User.Username != "system:serviceaccount:default:robot" {
			t.Errorf("for %q: %+v", audience, got.Status)
		}
	}
	bearer := rest.AnonymousClientConfig(s.Config)
	bearer.BearerToken = request.Status.Token
	who, err := kubernetes.NewForConfigOrDie(bearer).AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || who.Status.UserInfo.Username != "system:serviceaccount:default:robot" {
		t.Errorf("%v %+v", err, who)
	}
}
