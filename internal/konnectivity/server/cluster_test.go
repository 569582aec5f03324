package server

import (
	"context"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
	"github.com/trellis-k8s/trellis/testserver"
)

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
	client := kubernetes.NewForConfigOrDie(s.User("system:konnectivity-server"))
	authenticate := agentAccount.Authenticate(client.AuthenticationV1().TokenReviews())
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
		{"no token of anybody", "abc.def.ghi", "not valid for the audience"},
		{"other audience", tokenOf(t, admin, "kube-system", "konnectivity-agent", "somebody-else"), `not valid for the audience "system:konnectivity-server"`},
		{"other namespace", tokenOf(t, admin, "default", "konnectivity-agent", agentAccount.Audience), `in namespace "default", not in "kube-system"`},
		{"other account", tokenOf(t, admin, "kube-system", "other", agentAccount.Audience), `ServiceAccount "other", not of "konnectivity-agent"`},
	} {
		err := authenticate(t.Context(), c.token)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.what, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), c.token) {
			t.Errorf("%s: the token is in the message", c.what)
		}
	}
}

// KON-055: a server has a Lease that agents count it by, with the address where they reach it, and deletes it at its end.
func TestLeaseOfAServer(t *testing.T) {
	admin := kubernetes.NewForConfigOrDie(testserver.Start(t).Config)
	client := admin.CoordinationV1().Leases("kube-system")
	l, done := keeper(admin), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(done)
		l.run(ctx, "server-1")
	}()
	var got *coordinationv1.Lease
	eventually(t, "a Lease", func() (there bool) {
		var err error
		got, err = client.Get(t.Context(), "konnectivity-proxy-server-server-1", metav1.GetOptions{})
		return err == nil
	})
	if ptr.Deref(got.Spec.HolderIdentity, "") != "server-1" || ptr.Deref(got.Spec.LeaseDurationSeconds, 0) != 30 || !wire.LeaseValid(got.Spec, time.Now()) ||
		got.Labels["k8s-app"] != "konnectivity-server" || got.Annotations["konnectivity.trellis.io/address"] != "192.0.2.1:8132" {
		t.Errorf("got %+v", got)
	}
	cancel()
	<-done
	if _, err := client.Get(t.Context(), got.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the end: %v", err)
	}
}
