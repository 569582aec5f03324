package server

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/trellis-k8s/trellis/testserver"
)

var agentAccount = Account{Audience: "system:konnectivity-server", Namespace: "kube-system", Name: "konnectivity-agent"}

// tokenOf makes a ServiceAccount if there is none, and a token of it.
func tokenOf(t *testing.T, c kubernetes.Interface, namespace, name, audience string) string {
	t.Helper()
	accounts := c.CoreV1().ServiceAccounts(namespace)
	if _, err := accounts.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
		if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r, err := accounts.CreateToken(t.Context(), name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status.Token
}

// KON-028, KON-029, KON-030, KON-045, KON-046, KON-049: an API server reviews the agent's token, for the user that the documentation
// binds to system:auth-delegator; another audience, namespace or account is refused, and without the binding every token is.
func TestTokensAreReviewed(t *testing.T) {
	s := testserver.Start(t)
	admin := kubernetes.NewForConfigOrDie(s.Config)
	reviewer := kubernetes.NewForConfigOrDie(s.User("system:konnectivity-server"))
	authenticate := agentAccount.Authenticate(reviewer.AuthenticationV1().TokenReviews())
	good := tokenOf(t, admin, "kube-system", "konnectivity-agent", agentAccount.Audience)

	err := authenticate(t.Context(), good)
	if err == nil || !strings.Contains(err.Error(), "forbidden") || !strings.Contains(err.Error(), "system:auth-delegator") {
		t.Errorf("without the binding: %v", err)
	}
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "system:konnectivity-server"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:auth-delegator"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:konnectivity-server"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := authenticate(t.Context(), good); err != nil {
		t.Errorf("with the binding: %v", err)
	}
	for _, c := range []struct{ what, token, want string }{
		{"no token", "", "no token"},
		{"no token of anybody", "abc.def.ghi", "not valid for the audience"},
		{"other audience", tokenOf(t, admin, "kube-system", "konnectivity-agent", "somebody-else"), `not valid for the audience "system:konnectivity-server"`},
		{"other namespace", tokenOf(t, admin, "default", "konnectivity-agent", agentAccount.Audience), `in namespace "default", and not in "kube-system"`},
		{"other account", tokenOf(t, admin, "kube-system", "other", agentAccount.Audience), `ServiceAccount "other", and not of "konnectivity-agent"`},
	} {
		err := authenticate(t.Context(), c.token)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.what, err, c.want)
		}
		if c.token != "" && err != nil && strings.Contains(err.Error(), c.token) {
			t.Errorf("%s: the token is in the message", c.what)
		}
	}
}

// reviewed is a function that authenticates by what an API server is made to say.
func reviewed(answer func(*authenticationv1.TokenReview) error) func(context.Context, string) error {
	client := fake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		return true, r, answer(r)
	})
	return agentAccount.Authenticate(client.AuthenticationV1().TokenReviews())
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
		{"of no ServiceAccount", func(r *authenticationv1.TokenReview) error {
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

// KON-045: so many reviews at a time and no more; who is not served in time is refused.
func TestReviewsAtATime(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	authenticate := reviewed(func(r *authenticationv1.TokenReview) error {
		if r.Spec.Token == "early" {
			entered <- struct{}{}
			<-release
		}
		r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: r.Spec.Audiences, User: authenticationv1.UserInfo{Username: "system:serviceaccount:kube-system:konnectivity-agent"}}
		return nil
	})
	var early sync.WaitGroup
	for range maxReviews {
		early.Go(func() {
			if err := authenticate(t.Context(), "early"); err != nil {
				t.Error(err)
			}
		})
		<-entered
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if err := authenticate(late, "late"); !strings.Contains(err.Error(), "too many others") {
		t.Errorf("one too many: %v", err)
	}
	close(release)
	early.Wait()
	if err := authenticate(t.Context(), "late"); err != nil {
		t.Errorf("after the others: %v", err)
	}
}
