package apiserver_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// pausedServer is the environment variable with the URL of etcd and the data directory of a server in another process.
const pausedServer = "TEST_PAUSED_SERVER"

// TestEtcdRestoredDuringPause checks a server process that is paused while etcd is restored from an older copy, and
// while another process writes to it. Once the server continues, /livez/storage fails, its watches end with 410 Gone,
// and it stores and returns nothing. A restarted server has the restored objects.
func TestEtcdRestoredDuringPause(t *testing.T) {
	if config, ok := os.LookupEnv(pausedServer); ok {
		url, dir, _ := strings.Cut(config, " ")
		start(t, apiserver.Config{DataDir: dir, Etcd: etcd.Cluster{Servers: []string{url}},
			Controllers: []string{"clusterrole-aggregation-controller"}})
		fmt.Println("ready")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the other process ends
		return
	}
	e, dir := storagetest.StartEtcd(t), t.TempDir()
	server := startPaused(t, e.URL, dir)
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "admin.kubeconfig"))
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
		lost, err := maps.Create(ctx, configMap("lost"), metav1.CreateOptions{})
		if err == nil {
			last = lost.ResourceVersion
		}
		return err == nil
	})
	w, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: last})
	if err != nil {
		t.Fatal(err)
	}
	signal(t, server, syscall.SIGSTOP)
	e.Restore(older)
	foreign := etcdClient(t, clientv3.Config{Endpoints: []string{e.URL}})
	for i := range 40 {
		if _, err := foreign.Put(t.Context(), fmt.Sprint("/registry/foreign/", i), "{}"); err != nil {
			t.Fatal(err)
		}
	}
	signal(t, server, syscall.SIGCONT)
	wantGone(t, w)
	raw := client.CoreV1().RESTClient()
	eventually(t, "await the failure of /livez/storage", func(ctx context.Context) bool {
		return raw.Get().AbsPath("/livez/storage").Do(ctx).Error() != nil
	})
	again, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: last})
	if err != nil {
		t.Fatal(err)
	}
	wantGone(t, again)
	if _, err := maps.Get(t.Context(), "lost", metav1.GetOptions{}); err == nil || apierrors.IsNotFound(err) {
		t.Errorf("get after the restore: %v", err)
	}
	if _, err := maps.Create(t.Context(), configMap("late"), metav1.CreateOptions{}); err == nil {
		t.Error("the server has acknowledged a write after the restore")
	}
	_ = server.Process.Kill()
	_ = server.Wait()
	_, maps = onEtcd(t, e)
	list, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "kept" {
		t.Errorf("after a restart: got %+v, %v", list, err)
	}
}

// wantGone checks that a watch ends with 410 Gone, so that clients list again.
func wantGone(t *testing.T, w watch.Interface) {
	t.Helper()
	defer w.Stop()
	if ev := <-w.ResultChan(); ev.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(ev.Object)) {
		t.Errorf("the watch has got %+v, want 410 Gone", ev)
	}
}

// startPaused starts this test in another process, which serves until the end of the test.
func startPaused(t *testing.T, url, dir string) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), pausedServer+"="+url+" "+dir)
	cmd.Stderr = t.Output()
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "ready" {
			return cmd
		}
	}
	t.Fatal("the server does not start")
	return nil
}

func signal(t *testing.T, cmd *exec.Cmd, s os.Signal) {
	t.Helper()
	if err := cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}
