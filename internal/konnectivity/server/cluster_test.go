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

// createToken returns a token of a ServiceAccount, which it creates if it does not exist.
func createToken(t *testing.T, c kubernetes.Interface, namespace, name, audience string) string {
	t.Helper()
	accounts := c.CoreV1().ServiceAccounts(namespace)
	if _, err := accounts.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
		if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r, err := accounts.CreateToken(t.Context(), name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status.Token
}

// TestTokensAreReviewed checks that an API server reviews the tokens of agents. The tunnel server has the
// permissions of the user that the documentation binds to system:auth-delegator. A token with another audience,
// namespace or account is rejected. Without the binding, every token is rejected (KON-028, KON-029, KON-030,
// KON-045, KON-046, KON-049).
func TestTokensAreReviewed(t *testing.T) {
	s := testserver.Start(t)
	admin := kubernetes.NewForConfigOrDie(s.Config)
	client := kubernetes.NewForConfigOrDie(s.User("system:konnectivity-server"))
	authenticate := agentAccount.Authenticate(client.AuthenticationV1().TokenReviews())
	good := createToken(t, admin, "kube-system", "konnectivity-agent", agentAccount.Audience)

	err := authenticate(t.Context(), good)
	if err == nil || !strings.Contains(err.Error(), "forbidden") ||
		!strings.Contains(err.Error(), "system:auth-delegator") {
		t.Errorf("without the binding: got error %v", err)
	}
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "system:konnectivity-server"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:auth-delegator"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind,
			Name: "system:konnectivity-server"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := authenticate(t.Context(), good); err != nil {
		t.Errorf("with the binding: got error %v", err)
	}
	for _, c := range []struct{ name, token, want string }{
		{"invalid token", "abc.def.ghi", "not valid for the audience"},
		{"other audience", createToken(t, admin, "kube-system", "konnectivity-agent", "other-audience"),
			`not valid for the audience "system:konnectivity-server"`},
		{"other namespace", createToken(t, admin, "default", "konnectivity-agent", agentAccount.Audience),
			`in namespace "default", not in "kube-system"`},
		{"other account", createToken(t, admin, "kube-system", "other", agentAccount.Audience),
			`ServiceAccount "other", not to "konnectivity-agent"`},
	} {
		err := authenticate(t.Context(), c.token)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %s", c.name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), c.token) {
			t.Errorf("%s: the error contains the token", c.name)
		}
	}
}

// TestServerLease checks that a server publishes its Lease with its address, and deletes it at shutdown
// (KON-055).
func TestServerLease(t *testing.T) {
	admin := kubernetes.NewForConfigOrDie(testserver.Start(t).Config)
	client := admin.CoordinationV1().Leases("kube-system")
	l, done := newLeaseManager(admin), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(done)
		l.run(ctx, "server-1")
	}()
	var got *coordinationv1.Lease
	waitFor(t, "the Lease exists", func() bool {
		var err error
		got, err = client.Get(t.Context(), "konnectivity-proxy-server-server-1", metav1.GetOptions{})
		return err == nil
	})
	if ptr.Deref(got.Spec.HolderIdentity, "") != "server-1" || ptr.Deref(got.Spec.LeaseDurationSeconds, 0) != 30 ||
		!wire.LeaseValid(got.Spec, time.Now()) ||
		got.Labels["k8s-app"] != "konnectivity-server" ||
		got.Annotations["konnectivity.trellis.io/address"] != "192.0.2.1:8132" {
		t.Errorf("unexpected Lease %+v", got)
	}
	cancel()
	<-done
	if _, err := client.Get(t.Context(), got.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after shutdown: got error %v, want not found", err)
	}
}
