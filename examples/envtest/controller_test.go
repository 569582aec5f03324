// Package envtest_test contains an example controller and its test with envtest. The commands in docs/envtest.md run
// this test. The controller creates a ConfigMap for each CronTab, with the CronTab as the owner.
package envtest_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func newCronTab() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "stable.example.com", Version: "v1", Kind: "CronTab"})
	return u
}

// reconciler implements the controller.
type reconciler struct{ client.Client }

func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cronTab := newCronTab()
	if err := r.Get(ctx, req.NamespacedName, cronTab); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	spec, _, _ := unstructured.NestedString(cronTab.Object, "spec", "cronSpec")
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: req.Name, Namespace: req.Namespace}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, config, func() error {
		config.Data = map[string]string{"schedule": spec}
		return controllerutil.SetControllerReference(cronTab, config, r.Scheme())
	})
	return ctrl.Result{}, err
}

// TestController runs the controller as a user with the permissions of a ClusterRole.
func TestController(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip(`set KUBEBUILDER_ASSETS to a directory created by "trellis envtest"`)
	}
	env := &envtest.Environment{CRDDirectoryPaths: []string{filepath.Join("..", "crontab")},
		ErrorIfCRDPathMissing: true}
	config, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	admin, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	allow(t, admin, "controller",
		rbacv1.PolicyRule{APIGroups: []string{"stable.example.com"}, Resources: []string{"crontabs"},
			Verbs: []string{"get", "list", "watch"}},
		rbacv1.PolicyRule{APIGroups: []string{"stable.example.com"}, Resources: []string{"crontabs/finalizers"},
			Verbs: []string{"update"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"},
			Verbs: []string{"get", "list", "watch", "create", "update"}})
	user, err := env.AddUser(envtest.User{Name: "controller"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	startManager(t, user.Config())

	cronTab := newCronTab()
	cronTab.SetName("nightly")
	cronTab.SetNamespace("default")
	cronTab.Object["spec"] = map[string]any{"cronSpec": "0 3 * * *", "image": "backup"}
	if err := admin.Create(t.Context(), cronTab); err != nil {
		t.Fatal(err)
	}
	made := &corev1.ConfigMap{}
	eventually(t, "the ConfigMap is created", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(cronTab), made) == nil && made.Data["schedule"] == "0 3 * * *"
	})
	if err := admin.Delete(t.Context(), cronTab); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the ConfigMap is deleted with its owner", func(ctx context.Context) bool {
		return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(made), made))
	})
}

// allow grants rules to a user in all namespaces.
func allow(t *testing.T, admin client.Client, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	name := metav1.ObjectMeta{Name: user}
	for _, o := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: name, Rules: rules},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: name,
			Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: user}},
			RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", APIGroup: rbacv1.GroupName, Name: user},
		},
	} {
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// startManager runs the controller until the end of the test.
func startManager(t *testing.T, config *rest.Config) {
	t.Helper()
	manager, err := ctrl.NewManager(config, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	r := &reconciler{manager.GetClient()}
	if err := ctrl.NewControllerManagedBy(manager).For(newCronTab()).Owns(&corev1.ConfigMap{}).Complete(r); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func eventually(t *testing.T, what string, condition func(context.Context) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			return condition(ctx), nil
		})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
