package apiserver_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trellis-k8s/trellis/internal/fixture/program"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// TestEtcdRestoredDuringPause checks a server that is paused while etcd is restored from an older copy, and while
// another process writes to it. See testRestored.
func TestEtcdRestoredDuringPause(t *testing.T) {
	testRestored(t, func(e *storagetest.Etcd, s *program.Server, older string) {
		if err := s.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		restoreAndWrite(t, e, older)
		if err := s.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	})
}

// TestEtcdRestoredWhileDown checks a server whose registration has expired before etcd is restored from an older copy.
// See testRestored.
func TestEtcdRestoredWhileDown(t *testing.T) {
	testRestored(t, func(e *storagetest.Etcd, s *program.Server, older string) {
		e.Kill()
		eventually(t, "await the end of the registration", func(ctx context.Context) bool {
			err := s.Client.Discovery().RESTClient().Get().AbsPath("/api").MaxRetries(0).Do(ctx).Error()
			return apierrors.IsServiceUnavailable(err)
		})
		restoreAndWrite(t, e, older)
	})
}

// testRestored checks a server process after the function restore has replaced the data of etcd by an older copy. The
// process continues. /livez/storage fails, watches and lists of the lost history end with 410 Gone, and the server
// stores and returns nothing. After a restart, it has the restored objects.
func testRestored(t *testing.T, restore func(e *storagetest.Etcd, s *program.Server, older string)) {
	e, dir := storagetest.StartEtcd(t), filepath.Join(t.TempDir(), "server")
	s := program.StartServer(t, program.Build(t), dir, "127.0.0.1", "--etcd-servers="+e.URL)
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	client := quickClient(config)
	maps := client.CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), configMap("kept"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.Kill()
	older := t.TempDir()
	if err := os.CopyFS(older, os.DirFS(e.Dir)); err != nil {
		t.Fatal(err)
	}
	e.Start()
	last := ""
	eventually(t, "await etcd", func(ctx context.Context) bool {
		_, _ = maps.Create(ctx, configMap("lost"), metav1.CreateOptions{}) // it may succeed without an answer
		lost, err := maps.Get(ctx, "lost", metav1.GetOptions{})
		if err == nil {
			last = lost.ResourceVersion
		}
		return err == nil
	})
	page, err := maps.List(t.Context(), metav1.ListOptions{Limit: 1})
	if err != nil || page.Continue == "" {
		t.Fatalf("the first page has the token %q, %v", page.Continue, err)
	}
	watched := metav1.ListOptions{ResourceVersion: last, FieldSelector: "metadata.name=lost"}
	running, err := maps.Watch(t.Context(), watched)
	if err != nil {
		t.Fatal(err)
	}
	restore(e, s, older)
	wantGone(t, running)
	next, err := maps.Watch(t.Context(), watched)
	if err != nil {
		t.Fatal(err)
	}
	wantGone(t, next)
	get := func(path, parameter, value string) error {
		r := client.CoreV1().RESTClient().Get().AbsPath(path).MaxRetries(0)
		if parameter != "" {
			r.Param(parameter, value)
		}
		return r.Do(t.Context()).Error()
	}
	const collection = "/api/v1/namespaces/default/configmaps"
	if err := get(collection, "continue", page.Continue); !apierrors.IsResourceExpired(err) {
		t.Errorf("the next page after the restore: %v", err)
	}
	for _, version := range []string{"", "0", last} {
		if err := get(collection, "resourceVersion", version); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("a list at resourceVersion %q after the restore: %v", version, err)
		}
		if err := get(collection+"/lost", "resourceVersion", version); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("get at resourceVersion %q after the restore: %v", version, err)
		}
	}
	if err := get("/livez/storage", "", ""); !apierrors.IsInternalError(err) {
		t.Errorf("/livez/storage after the restore: %v", err)
	}
	err = client.CoreV1().RESTClient().Post().AbsPath(collection).Body(configMap("late")).MaxRetries(0).Do(t.Context()).
		Error()
	if !apierrors.IsServiceUnavailable(err) {
		t.Errorf("create after the restore: %v", err)
	}
	if err := get("/readyz/shutdown", "", ""); err != nil {
		t.Errorf("the server ends after the restore: %v", err)
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	for _, name := range []string{"lost", "late"} {
		if _, err := maps.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("after a restart, %s: %v", name, err)
		}
	}
}

// restoreAndWrite restores etcd from an older copy, and then writes keys that no server has read.
func restoreAndWrite(t *testing.T, e *storagetest.Etcd, older string) {
	t.Helper()
	e.Restore(older)
	foreign := etcdClient(t, clientv3.Config{Endpoints: []string{e.URL}})
	for i := range 40 {
		if _, err := foreign.Put(t.Context(), fmt.Sprint("/registry/foreign/", i), "{}"); err != nil {
			t.Fatal(err)
		}
	}
}

// wantGone checks that a watch ends with 410 Gone, so that clients list again.
func wantGone(t *testing.T, w watch.Interface) {
	t.Helper()
	defer w.Stop()
	select {
	case ev := <-w.ResultChan():
		if ev.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(ev.Object)) {
			t.Errorf("the watch has got %+v, want 410 Gone", ev)
		}
	case <-time.After(time.Minute):
		t.Error("the watch does not end")
	}
}
