package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

const volumes = `
containers:
- name: main
  image: example.com/main:1
  resources: {limits: {memory: 64Mi}}
  volumeMounts:
  - {name: secret, mountPath: /secret}
  - {name: config, mountPath: /config}
  - {name: projected, mountPath: /projected}
  - {name: pod, mountPath: /pod}
  - {name: scratch, mountPath: /scratch}
  - {name: memory, mountPath: /memory}
  - {name: host, mountPath: /host, readOnly: true}
  - {name: config, mountPath: /one, subPath: key}
volumes:
- {name: secret, secret: {secretName: password, defaultMode: 0400}}
- {name: config, configMap: {name: settings}}
- name: projected
  projected:
    sources:
    - serviceAccountToken: {audience: vault, path: token, expirationSeconds: 600}
    - configMap: {name: settings, items: [{key: key, path: sub/key}]}
- name: pod
  downwardAPI:
    items:
    - {path: labels, fieldRef: {fieldPath: metadata.labels}}
    - {path: memory, resourceFieldRef: {containerName: main, resource: limits.memory}}
- {name: scratch, emptyDir: {}}
- {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
- {name: host, hostPath: {path: HOST, type: Directory}}
`

// TestVolumes checks the content and the modes of all kinds of volumes, and that they are removed with the Pod.
func TestVolumes(t *testing.T) {
	f := newFixture(t)
	core, ctx := f.kube.CoreV1(), t.Context()
	password := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "password"},
		StringData: map[string]string{"word": "open"}}
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"},
		Data: map[string]string{"key": "value"}}
	if _, err := core.Secrets("default").Create(ctx, password, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.ConfigMaps("default").Create(ctx, settings, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o := f.options("volumes")
	f.start(o)
	f.readyNode("volumes")
	host := t.TempDir()
	f.createPod("volumes", "main", func(s *corev1.PodSpec) {
		if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(volumes, "HOST", host)), s); err != nil {
			t.Fatal(err)
		}
	})
	pod := f.runningPod("main")
	config := f.configsOf(pod)[0]
	for path, want := range map[string]string{
		"/secret/word": "open", "/config/key": "value", "/one": "value",
		"/projected/sub/key": "value", "/pod/labels": `app="main"`, "/pod/memory": "67108864",
	} {
		if data, err := os.ReadFile(hostPath(t, config, path)); err != nil || string(data) != want {
			t.Errorf("%s is %q, %v, want %q", path, data, err, want)
		}
	}
	if info, err := os.Stat(hostPath(t, config, "/secret/word")); err != nil || info.Mode().Perm() != 0o400 {
		t.Errorf("the secret's file: %v, %v", info, err)
	}
	token, err := os.ReadFile(hostPath(t, config, "/projected/token"))
	if err != nil {
		t.Fatal(err)
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: string(token),
		Audiences: []string{"vault"}}}
	if review, err = f.kube.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !review.Status.Authenticated || review.Status.User.Username != "system:serviceaccount:default:default" {
		t.Errorf("status of the token: %v", review.Status)
	}
	for path, memory := range map[string]bool{"/secret": true, "/projected": true, "/memory": true, "/scratch": false} {
		if got := isTmpfs(t, hostPath(t, config, path)); got != memory && os.Getuid() == 0 {
			t.Errorf("%s is in memory: %t", path, got)
		}
	}
	if hostPath(t, config, "/host") != host {
		t.Errorf("/host is %s", hostPath(t, config, "/host"))
	}

	if err := core.Pods("default").Delete(ctx, "main",
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)}); err != nil {
		t.Fatal(err)
	}
	f.eventually("the Pod and its folder are deleted", func(ctx context.Context) bool {
		_, err := core.Pods("default").Get(ctx, "main", metav1.GetOptions{})
		_, left := os.Stat(filepath.Join(o.Root, "pods", string(pod.UID)))
		return apierrors.IsNotFound(err) && os.IsNotExist(left)
	})
	if _, err := os.Stat(host); err != nil {
		t.Errorf("the host's folder was deleted with the Pod: %v", err)
	}
}

// hostPath converts a path in a container to the path on the host.
func hostPath(t *testing.T, config *runtimeapi.ContainerConfig, path string) string {
	t.Helper()
	for _, m := range config.Mounts {
		if rest, ok := strings.CutPrefix(path, m.ContainerPath); ok && (rest == "" || rest[0] == '/') {
			return m.HostPath + rest
		}
	}
	t.Fatalf("nothing is mounted at %s: %v", path, config.Mounts)
	return ""
}

// isTmpfs reports whether a folder is the mount point of a tmpfs. Its parent may be on another tmpfs.
func isTmpfs(t *testing.T, path string) bool {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		t.Fatal(err)
	}
	var dir, parent syscall.Stat_t
	if err := syscall.Stat(path, &dir); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Stat(filepath.Dir(path), &parent); err != nil {
		t.Fatal(err)
	}
	return fs.Type == unix.TMPFS_MAGIC && dir.Dev != parent.Dev
}
