package testserver_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/internal/controllers/manifests"
	"github.com/trellis-k8s/trellis/internal/fixture/outside"
	"github.com/trellis-k8s/trellis/testserver"
)

// TestObjectsOfASecondScheduler applies the manifests of a second scheduler: those of this repository, and the
// unchanged ones of the documentation if they are available. It checks that the scheduler's service account gets the
// required permissions. The permission for a Lease with the scheduler's name requires the documented change of the
// ClusterRole. It also checks that each Pod specifies its scheduler. SCD-003 SCD-007 SCD-009 SCD-010 SCD-011 SCD-012
// SCD-018 SCD-022 SCD-023 SCD-025 SCD-027 SCD-029 SCD-030 SCD-031 SCD-032.
func TestObjectsOfASecondScheduler(t *testing.T) {
	for name, folder := range map[string]string{
		"own":           "../cluster/cmd/trellis-cluster/testdata/documents/12-schedulers",
		"documentation": outside.Path("spec/examples/12-schedulers"),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat(folder); name != "own" && err != nil {
				t.Skip("the examples of the documentation are not available")
			}
			hasSecondScheduler(t, folder)
		})
	}
}

// hasSecondScheduler applies the manifests of a folder to a server and sends the requests of the scheduler.
func hasSecondScheduler(t *testing.T, folder string) {
	t.Helper()
	s, ctx := testserver.Start(t), t.Context()
	admin := kubernetes.NewForConfigOrDie(s.Config)
	var files []string
	for _, name := range []string{"my-scheduler.yaml", "pod1.yaml", "pod2.yaml", "pod3.yaml"} {
		files = append(files, filepath.Join(folder, name))
	}
	if err := manifests.Apply(ctx, s.Config, files, io.Discard); err != nil {
		t.Fatal(err)
	}
	deployment, err := admin.AppsV1().Deployments("kube-system").Get(ctx, "my-scheduler", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := deployment.Spec.Template
	if c := pod.Spec.Containers[0]; pod.Labels["version"] != "second" ||
		c.Resources.Requests.Cpu().MilliValue() != 100 || *c.SecurityContext.Privileged || pod.Spec.HostNetwork ||
		pod.Spec.HostPID {
		t.Errorf("%+v", pod)
	}
	config, err := admin.CoreV1().ConfigMaps("kube-system").Get(ctx, "my-scheduler-config", metav1.GetOptions{})
	if err != nil || config.Data["my-scheduler-config.yaml"] == "" {
		t.Errorf("%v %v", config, err)
	}
	for name, scheduler := range map[string]string{"no-annotation": "default-scheduler",
		"annotation-default-scheduler": "default-scheduler", "annotation-second-scheduler": "my-scheduler"} {
		of, err := admin.CoreV1().Pods(metav1.NamespaceDefault).List(ctx,
			metav1.ListOptions{FieldSelector: "spec.schedulerName=" + scheduler + ",metadata.name=" + name})
		if err != nil || len(of.Items) != 1 {
			t.Errorf("%s is not %s's: %v %v", name, scheduler, of, err)
		}
	}

	token, err := admin.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, "my-scheduler",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scheduler := kubernetes.NewForConfigOrDie(&rest.Config{Host: s.Config.Host, BearerToken: token.Status.Token,
		TLSClientConfig: rest.TLSClientConfig{CAData: s.Config.CAData}})
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "annotation-second-scheduler"},
		Target: corev1.ObjectReference{Kind: "Node", Name: "m"}}
	for what, do := range map[string]func() error{
		"watch Pods": func() error {
			w, err := scheduler.CoreV1().Pods("").Watch(ctx,
				metav1.ListOptions{FieldSelector: "spec.schedulerName=my-scheduler"})
			if err == nil {
				w.Stop()
			}
			return err
		},
		"bind a Pod": func() error {
			return scheduler.CoreV1().Pods(metav1.NamespaceDefault).Bind(ctx, binding, metav1.CreateOptions{})
		},
		"list volumes": func() error {
			_, err := scheduler.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
			return err
		},
		"read the client CAs": func() error {
			_, err := scheduler.CoreV1().ConfigMaps("kube-system").List(ctx,
				metav1.ListOptions{FieldSelector: "metadata.name=extension-apiserver-authentication"})
			return err
		},
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}

	leases := scheduler.CoordinationV1().Leases("kube-system")
	lock := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "my-scheduler"}, Spec: coordinationv1.LeaseSpec{
		HolderIdentity: ptr.To("one"), LeaseDurationSeconds: ptr.To[int32](15), AcquireTime: ptr.To(metav1.NowMicro()),
		RenewTime: ptr.To(metav1.NowMicro()), LeaseTransitions: ptr.To[int32](0),
	}}
	if _, err := leases.Create(ctx, lock, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := leases.Get(ctx, "my-scheduler", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the lock, without the edit: %v", err)
	}
	role, err := admin.RbacV1().ClusterRoles().Get(ctx, "system:kube-scheduler", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{"coordination.k8s.io"},
		Resources: []string{"leases"}, ResourceNames: []string{"kube-scheduler", "my-scheduler"}, Verbs: []string{"get",
			"update"}})
	if _, err := admin.RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	held, err := leases.Get(ctx, "my-scheduler", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("the lock, after the edit: %v", err)
	}
	held.Spec.RenewTime = ptr.To(metav1.NewMicroTime(held.Spec.RenewTime.Add(2 * time.Second)))
	if held, err = leases.Update(ctx, held, metav1.UpdateOptions{}); err != nil || *held.Spec.HolderIdentity != "one" ||
		*held.Spec.LeaseDurationSeconds != 15 {
		t.Errorf("%+v %v", held, err)
	}
}
