package controllers_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/controllers"
	"github.com/trellis-k8s/trellis/testserver"
)

// awaitEvent waits until done returns true for an event of the watch. The first events of the watch are the existing
// objects.
func awaitEvent(t *testing.T, w watch.Interface, err error, done func(event watch.EventType, obj runtime.Object) bool) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if done(e.Type, e.Object) {
			return
		}
	}
	t.Fatal("the watch ended before the expected event")
}

func withControllers(names ...string) testserver.Option {
	return testserver.With(func(c *apiserver.Config) { c.Controllers = names })
}

// TestNamespaceDefaultObjects checks that every namespace has the ServiceAccount default and the CA of the server.
// They are restored after a client has deleted or changed them.
func TestNamespaceDefaultObjects(t *testing.T) {
	s := testserver.Start(t, withControllers("*"))
	client, ctx := kubernetes.NewForConfigOrDie(s.Config).CoreV1(), t.Context()
	account := func(namespace string, not string) (uid string) {
		t.Helper()
		w, err := client.ServiceAccounts(namespace).Watch(ctx, metav1.ListOptions{})
		awaitEvent(t, w, err, func(event watch.EventType, obj runtime.Object) bool {
			uid = string(obj.(*corev1.ServiceAccount).UID)
			return event != watch.Deleted && obj.(*corev1.ServiceAccount).Name == "default" && uid != not
		})
		return uid
	}
	ca := func(namespace string) {
		t.Helper()
		w, err := client.ConfigMaps(namespace).
			Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=kube-root-ca.crt"})
		awaitEvent(t, w, err, func(_ watch.EventType, obj runtime.Object) bool {
			return obj.(*corev1.ConfigMap).Data["ca.crt"] == string(s.Config.CAData)
		})
	}
	account(metav1.NamespaceDefault, "")
	ca(metav1.NamespaceSystem)
	if _, err := client.Namespaces().Create(
		ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	first := account("new", "")
	ca("new")
	if err := client.ServiceAccounts("new").Delete(ctx, "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	account("new", first)
	changed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}}
	if _, err := client.ConfigMaps("new").Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	ca("new")
}

// TestTokensInSecrets checks that a token is written into a token Secret. The token authenticates as the
// ServiceAccount, its use is recorded, and it is deleted with the ServiceAccount.
func TestTokensInSecrets(t *testing.T) {
	s := testserver.Start(t, withControllers("serviceaccount-token-controller"))
	client, ctx := kubernetes.NewForConfigOrDie(s.Config).CoreV1(), t.Context()
	if _, err := client.ServiceAccounts("default").Create(
		ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		Type: corev1.SecretTypeServiceAccountToken,
		ObjectMeta: metav1.ObjectMeta{
			Name:        "robot-token",
			Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"},
		},
	}
	if _, err := client.Secrets("default").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := client.Secrets("default").Watch(ctx, metav1.ListOptions{})
	awaitEvent(t, w, err, func(_ watch.EventType, obj runtime.Object) bool {
		secret = obj.(*corev1.Secret)
		return len(secret.Data["token"]) > 0
	})
	if string(secret.Data["ca.crt"]) != string(s.Config.CAData) || string(secret.Data["namespace"]) != "default" {
		t.Errorf("got Secret data %v, want the server's CA and the namespace default", secret.Data)
	}
	bearer := rest.AnonymousClientConfig(s.Config)
	bearer.BearerToken = string(secret.Data["token"])
	review, err := kubernetes.NewForConfigOrDie(bearer).
		AuthenticationV1().
		SelfSubjectReviews().
		Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || review.Status.UserInfo.Username != "system:serviceaccount:default:robot" {
		t.Errorf("got error %v, user %+v, want the ServiceAccount", err, review)
	}
	if secret, err = client.Secrets("default").Get(
		ctx, "robot-token", metav1.GetOptions{},
	); err != nil || secret.Labels["kubernetes.io/legacy-token-last-used"] == "" {
		t.Errorf("got error %v, labels %v, want the label of the last use", err, secret.Labels)
	}
	if err := client.ServiceAccounts("default").Delete(ctx, "robot", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err = client.Secrets("default").Watch(ctx, metav1.ListOptions{ResourceVersion: secret.ResourceVersion})
	awaitEvent(t, w, err, func(event watch.EventType, _ runtime.Object) bool { return event == watch.Deleted })
	if _, err := client.ServiceAccounts("default").Get(
		ctx, "default", metav1.GetOptions{},
	); !apierrors.IsNotFound(err) {
		t.Errorf("a controller that is not enabled runs: %v", err)
	}
}

// TestCheckControllers checks that CheckControllers accepts the names that kube-controller-manager uses for its
// controllers.
func TestCheckControllers(t *testing.T) {
	for _, c := range [][]string{
		nil, {"-*"}, {"*", "-serviceaccount-controller"}, {"root-ca-certificate-publisher-controller"},
		{"-namespace-controller"},
	} {
		if err := controllers.CheckControllers(c); err != nil {
			t.Errorf("%v: %v", c, err)
		}
	}
	if err := controllers.CheckControllers([]string{"-gone"}); err == nil ||
		err.Error() != `"gone" is not in the list of known controllers` {
		t.Error(err)
	}
}
