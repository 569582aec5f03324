package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// startEnvtest starts a control plane as the tests of a project do, with the folder that `trellis envtest` fills. The
// current folder is empty and must still be empty at the end of the test.
func startEnvtest(t *testing.T, env *envtest.Environment) {
	t.Helper()
	crds, err := filepath.Abs("../../examples/crontab")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("trellis", "envtest", filepath.Join(t.TempDir(), "k8s")).Output()
	if err != nil {
		t.Fatalf("trellis envtest: %v", err)
	}
	t.Setenv("KUBEBUILDER_ASSETS", strings.TrimSpace(string(out)))
	t.Setenv("USE_EXISTING_CLUSTER", "")
	here := t.TempDir()
	t.Chdir(here)
	env.CRDDirectoryPaths, env.ErrorIfCRDPathMissing = []string{crds}, true
	env.AttachControlPlaneOutput = true
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		if left, err := os.ReadDir(here); err != nil || len(left) > 0 {
			t.Errorf("files left in the current folder: %v (%v)", left, err)
		}
	})
	if _, err := env.Start(); err != nil {
		t.Fatalf("start: %v", err)
	}
}

func cronTab(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "stable.example.com/v1", "kind": "CronTab",
		"metadata": map[string]any{"name": name, "namespace": "default"},
		"spec":     map[string]any{"cronSpec": "* * * * *", "image": "image"},
	}}
}

func newClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestEnvtest checks that a user added to envtest's control plane is authenticated and authorized by roles. The token
// of a ServiceAccount is valid, too. It is signed with the key that envtest provides.
func TestEnvtest(t *testing.T) {
	ctx, env := t.Context(), &envtest.Environment{}
	startEnvtest(t, env)
	admin := newClient(t, env.Config)
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader", Namespace: "default"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"stable.example.com"}, Resources: []string{"crontabs"},
			Verbs: []string{"get"}}},
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "readers", Namespace: "default"},
		Subjects: []rbacv1.Subject{
			{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "readers"},
			{Kind: "ServiceAccount", Name: "robot", Namespace: "default"},
		},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot", Namespace: "default"}}
	for _, o := range []client.Object{cronTab("a"), role, binding, account} {
		if err := admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	yes := true
	privileged := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: "i",
			SecurityContext: &corev1.SecurityContext{Privileged: &yes}}}}}
	external := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"},
		Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{Port: 80}}, ExternalIPs: []string{"192.0.2.1"}}}
	// kube-apiserver accepts both objects with the flags that envtest passes.
	for _, o := range []client.Object{privileged, external} {
		if err := admin.Create(ctx, o); err != nil {
			t.Error(err)
		}
	}
	jane, err := env.AddUser(envtest.User{Name: "jane", Groups: []string{"readers"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkReadOnly(t, "jane", newClient(t, jane.Config()))

	token, err := kubernetes.NewForConfigOrDie(env.Config).CoreV1().ServiceAccounts("default").CreateToken(ctx, "robot",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	robot := rest.AnonymousClientConfig(env.Config)
	robot.BearerToken = token.Status.Token
	checkReadOnly(t, "robot", newClient(t, robot))

	if raceDetector {
		return // with the race detector, kubectl is slow and prints a warning
	}
	kubectl, err := jane.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	kubectl.Opts = append(kubectl.Opts, "--cache-dir="+t.TempDir())
	stdout, stderr, err := kubectl.Run("get", "crontabs", "a", "-o", "name")
	if out := readAll(t, stdout); err != nil || out != "crontab.stable.example.com/a\n" {
		t.Errorf("kubectl: %v: %s%s", err, out, readAll(t, stderr))
	}
}

// checkReadOnly checks that a client has the rights of the role in TestEnvtest: it can read, but not write.
func checkReadOnly(t *testing.T, user string, c client.Client) {
	t.Helper()
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "a"}, cronTab("")); err != nil {
		t.Errorf("%s reads: %v", user, err)
	}
	if err := c.Create(t.Context(), cronTab("b")); !apierrors.IsForbidden(err) {
		t.Errorf("%s writes: %v, want Forbidden", user, err)
	}
}

// TestEnvtestRestart checks that objects survive a restart of the API server while etcd continues to run. The objects
// are stored in the data directory of the etcd stub, or in a real etcd.
func TestEnvtestRestart(t *testing.T) {
	for _, c := range []struct {
		name  string
		store bool // whether etcd's data directory holds Trellis' store
	}{{"stub", true}, {"etcd", false}} {
		t.Run(c.name, func(t *testing.T) {
			etcd := &envtest.Etcd{DataDir: t.TempDir()}
			if !c.store {
				program, found := storagetest.Program(t, "etcd")
				if !found {
					t.Skip("no etcd program: build it with make oracle")
				}
				etcd.Path = program
			}
			apiServer := &envtest.APIServer{CertDir: t.TempDir()}
			env := &envtest.Environment{ControlPlane: envtest.ControlPlane{APIServer: apiServer, Etcd: etcd}}
			startEnvtest(t, env)
			ctx, admin := context.Background(), newClient(t, env.Config)
			before := cronTab("a")
			if err := admin.Create(ctx, before); err != nil {
				t.Fatal(err)
			}
			if err := apiServer.Stop(); err != nil {
				t.Fatal(err)
			}
			if err := apiServer.Start(); err != nil {
				t.Fatal(err)
			}
			after := cronTab("")
			if err := admin.Get(ctx, client.ObjectKeyFromObject(before), after); err != nil {
				t.Fatal(err)
			}
			if after.GetUID() != before.GetUID() || after.GetResourceVersion() != before.GetResourceVersion() {
				t.Errorf("before the restart: %v, after it: %v", before, after)
			}
			if _, err := os.Stat(filepath.Join(etcd.DataDir, "store")); (err == nil) != c.store {
				t.Errorf("stat of the store in etcd's data directory: %v, want a store: %v", err, c.store)
			}
		})
	}
}

// TestEnvtestNamespaces checks namespaces on a server with the name kube-apiserver. A client that deletes and then
// finalizes a namespace gets no conflict, even if it waits between these requests. If no client finalizes a
// namespace, the server removes it. CRD-031
func TestEnvtestNamespaces(t *testing.T) {
	env := &envtest.Environment{}
	startEnvtest(t, env)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 3 {
				finalizeNamespace(t, env.Config, fmt.Sprintf("n-%d-%d", i, j), j == 1)
			}
		})
	}
	admin := kubernetes.NewForConfigOrDie(env.Config).CoreV1().Namespaces()
	deleteNamespace(t, env.Config, "ends")
	all.Wait()
	gone := func(ctx context.Context) (bool, error) {
		_, err := admin.Get(ctx, "ends", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	}
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, gone); err != nil {
		t.Errorf("the namespace is not removed: %v", err)
	}
}

// deleteNamespace creates a namespace, deletes it, and returns the terminating object.
func deleteNamespace(t *testing.T, config *rest.Config, name string) *corev1.Namespace {
	c := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces()
	if _, err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if err := c.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	ns, err := c.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Error(err)
	}
	return ns
}

// finalizeNamespace deletes and finalizes a namespace like the tests of controller-runtime's client. If typed is
// true, it uses the client of client-go. Otherwise it uses the client of controller-runtime.
func finalizeNamespace(t *testing.T, config *rest.Config, name string, typed bool) {
	ns := deleteNamespace(t, config, name)
	<-time.After(200 * time.Millisecond) // a delay such as that of a busy machine
	ns.Spec.Finalizers = nil
	var err error
	if typed {
		_, err = kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().Finalize(t.Context(), ns,
			metav1.UpdateOptions{})
	} else {
		var c client.Client
		if c, err = client.New(config, client.Options{}); err == nil {
			err = c.SubResource("finalize").Update(t.Context(), ns)
		}
	}
	if err != nil {
		t.Errorf("finalize %s: %v", name, err)
	}
}

// TestKubeAPIServerHasNoControllers checks that a server with the name kube-apiserver runs no controllers of
// kube-controller-manager, because envtest has no such controllers.
func TestKubeAPIServerHasNoControllers(t *testing.T) {
	if f := newKubeAPIServer().Flags().Lookup("controllers"); f != nil {
		t.Errorf("unexpected flag --%s", f.Name)
	}
}

// TestFlagsOfKubeAPIServer checks the flags of kube-apiserver that support only their default. They reject all other
// values. It also checks that kube-apiserver rejects privileged Pods by default, which `trellis serve` accepts.
func TestFlagsOfKubeAPIServer(t *testing.T) {
	for _, flag := range []string{"--watch-cache", "--watch-cache=true", "--endpoint-reconciler-type=none",
		"--storage-backend=etcd3", "--storage-media-type=application/json", "--allow-privileged", "--v=2"} {
		if err := newKubeAPIServer().ParseFlags([]string{flag}); err != nil {
			t.Errorf("%s: %v", flag, err)
		}
	}
	for _, flag := range []string{"--watch-cache=false", "--endpoint-reconciler-type=lease", "--storage-backend=etcd2",
		"--storage-media-type=application/vnd.kubernetes.protobuf", "--vmodule=a=1"} {
		if err := newKubeAPIServer().ParseFlags([]string{flag}); err == nil ||
			!strings.Contains(err.Error(), "is supported") {
			t.Errorf("%s: %v", flag, err)
		}
	}
	for name, want := range map[string]string{"kube-apiserver": "false", "serve": "true"} {
		cmd := newKubeAPIServer()
		if name == "serve" {
			cmd = newServe()
		}
		if got := cmd.Flags().Lookup("allow-privileged"); got.DefValue != want || got.Value.String() != want {
			t.Errorf("%s: default %s, want %s", name, got.DefValue, want)
		}
	}
}

// TestFlagsOfEtcd checks that the etcd stub accepts the flags that envtest passes, and rejects flags and values that it
// cannot honour.
func TestFlagsOfEtcd(t *testing.T) {
	for _, flag := range []string{"--unsafe-no-fsync=true", "--listen-peer-urls=http://localhost:0",
		"--log-level=error", "--logger=zap", "--name=default", "--quota-backend-bytes=0"} {
		if err := newEtcdStub().ParseFlags([]string{flag}); err != nil {
			t.Errorf("%s: %v", flag, err)
		}
	}
	for _, flag := range []string{"--log-level=loud", "--logger=capnslog", "--max-request-bytes=1",
		"--quota-backend-bytes=8589934592", "--snapshot-count=1", "--initial-cluster=a=http://b"} {
		if err := newEtcdStub().ParseFlags([]string{flag}); err == nil {
			t.Errorf("%s is accepted", flag)
		}
	}
	for _, flags := range [][]string{
		{"--advertise-client-urls=http://127.0.0.1:1"},
		{"--listen-peer-urls=unix://peer"},
	} {
		etcd := newEtcdStub()
		etcd.SetArgs(append(flags, "--data-dir="+t.TempDir(), "--listen-client-urls=http://127.0.0.1:0"))
		if err := etcd.ExecuteContext(t.Context()); err == nil ||
			!strings.Contains(err.Error(), strings.SplitN(flags[0], "=", 2)[0]) {
			t.Errorf("%s: %v", flags, err)
		}
	}
}
