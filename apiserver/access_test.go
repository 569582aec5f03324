package apiserver_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/testserver"
)

// TestAuthorizationConfigReload checks that a change of --authorization-config takes effect without a restart, and that
// the reload is counted in upstream's metric.
func TestAuthorizationConfigReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "authz.yaml")
	writeConfig := func(more string) {
		t.Helper()
		text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n" +
			"- {type: RBAC, name: rbac}\n" + more
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600),
			os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	writeConfig("")
	s := testserver.Start(t, testserver.With(func(c *apiserver.Config) { c.Authorization.ConfigFile = path }))
	joe := kubernetes.NewForConfigOrDie(s.User("joe"))
	_, err := joe.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Fatal(err)
	}
	writeConfig("- {type: AlwaysAllow, name: alwaysallow}\n")
	for apierrors.IsForbidden(err) {
		_, err = joe.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	}
	// the metric changes after the reload
	for metrics := []byte(nil); !bytes.Contains(metrics,
		[]byte(`apiserver_authorization_config_controller_automatic_reloads_total{apiserver_id_hash="",status="success"} 1`)); {
		if metrics, err = joe.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTokenReview checks that a TokenReview authenticates a service account token if the token has one of the audiences
// of the review. It also checks that the token authenticates requests to the server. (AGG-033 AGG-038)
func TestTokenReview(t *testing.T) {
	s := testserver.Start(t)
	client, ctx := kubernetes.NewForConfigOrDie(s.Config), t.Context()
	accounts := client.CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	request, err := accounts.CreateToken(ctx, "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for audience, want := range map[string]bool{"": true, "https://kubernetes.default.svc.cluster.local": true,
		"others": false} {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: request.Status.Token}}
		if audience != "" {
			review.Spec.Audiences = []string{audience}
		}
		got, err := client.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Status.Authenticated != want || want &&
			got.Status.User.Username != "system:serviceaccount:default:robot" {
			t.Errorf("for %q: %+v", audience, got.Status)
		}
	}
	bearer := rest.AnonymousClientConfig(s.Config)
	bearer.BearerToken = request.Status.Token
	review, err := kubernetes.NewForConfigOrDie(bearer).AuthenticationV1().SelfSubjectReviews().Create(ctx,
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || review.Status.UserInfo.Username != "system:serviceaccount:default:robot" {
		t.Errorf("%v %+v", err, review)
	}
}
