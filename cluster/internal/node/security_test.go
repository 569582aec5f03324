package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/volume/util/subpath"

	"github.com/trellis-k8s/trellis/testserver"
)

// TestSubPathStaysInTheVolume checks that a subPath cannot leave its volume through a symbolic link (CVE-2017-1002101),
// also if the link repeatedly replaces a folder during the mount (CVE-2021-25741).
func TestSubPathStaysInTheVolume(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	secret, volume, pod := t.TempDir(), t.TempDir(), t.TempDir()
	folder, link := filepath.Join(volume, "folder"), filepath.Join(volume, "link")
	for name, text := range map[string]string{filepath.Join(secret, "key"): "s3cret",
		filepath.Join(folder, "key"): "harmless"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	s := subpath.New(newMounter())
	t.Cleanup(func() { s.CleanSubPaths(pod, "volume") })
	prepare := func(index int, name string) (string, error) {
		host, cleanup, err := s.PrepareSafeSubpath(subpath.Subpath{
			VolumeMountIndex: index, Path: filepath.Join(volume,
				name), VolumeName: "volume", VolumePath: volume, PodDir: pod, ContainerName: "main",
		})
		if cleanup != nil {
			defer cleanup()
		}
		if err != nil {
			return "", err
		}
		key, err := os.ReadFile(filepath.Join(host, "key"))
		return string(key), err
	}
	if key, err := prepare(0, "folder"); err != nil || key != "harmless" {
		t.Fatalf("a folder: %q, %v", key, err)
	}
	if key, err := prepare(1, "link"); err == nil {
		t.Errorf("got %q through a link", key)
	}
	if err := s.SafeMakeDir("link/made", volume, 0o755); err == nil {
		t.Error("a folder is created behind a link")
	}

	ctx, stop := context.WithCancel(t.Context())
	swapped := make(chan struct{})
	go func() {
		defer close(swapped)
		for ctx.Err() == nil {
			unix.Renameat2(unix.AT_FDCWD, folder, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
		}
	}()
	for i := range 200 {
		if key, err := prepare(2+i, "folder"); err == nil && key != "harmless" {
			t.Errorf("got %q during the race", key)
		}
	}
	stop()
	<-swapped
}

// TestGitRepoIsRefused checks that a Pod with a gitRepo volume does not start, so the node runs no git (CVE-2024-10220,
// CVE-2025-1767).
func TestGitRepoIsRefused(t *testing.T) {
	f := newFixture(t)
	f.start(f.options("git"))
	f.readyNode("git")
	repository := t.TempDir()
	f.createPod("git", "cloner", func(s *corev1.PodSpec) {
		s.Volumes = []corev1.Volume{{Name: "repo",
			VolumeSource: corev1.VolumeSource{GitRepo: &corev1.GitRepoVolumeSource{Repository: repository,
				Directory: "."}}}}
		s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "repo", MountPath: "/repo"}}
	})
	f.eventually("an event contains the reason", func(ctx context.Context) bool {
		events, err := f.kube.CoreV1().Events("default").List(ctx,
			metav1.ListOptions{FieldSelector: "involvedObject.name=cloner"})
		if err != nil {
			return false
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, "no volume plugin matched") {
				return true
			}
		}
		return false
	})
	if n := f.runningContainers("cloner"); n != 0 {
		t.Errorf("got %d running containers of the Pod, want none", n)
	}
}

// TestEveryPathNeedsARight checks that a node listens only on the kubelet's port. There must be no read-only port and
// no health port (CVE-2020-8551, CVE-2019-11248). Every path of the kubelet must require authentication and
// authorization, including debug handlers, logs and checkpoints (CVE-2025-0426).
func TestEveryPathNeedsARight(t *testing.T) {
	f := newFixture(t)
	p := f.start(f.options("paths"))
	node := f.readyNode("paths")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(f.server.Config.CAData)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	status := func(method, path, token string) int {
		request, err := http.NewRequestWithContext(t.Context(), method, "https://"+kubeletAddress(node)+path,
			bytes.NewReader(nil))
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := client.Do(request)
		if err != nil {
			return 0
		}
		defer response.Body.Close()
		io.Copy(io.Discard, response.Body)
		return response.StatusCode
	}
	f.eventually("the kubelet has a serving certificate",
		func(context.Context) bool { return status("GET", "/pods", "") != 0 })
	none, pods := f.newAccount("none"), f.newAccount("pods", testserver.May("get", "pods"),
		testserver.May("get", "nodes"))
	for _, path := range []string{
		"/healthz", "/pods", "/runningpods/", "/metrics", "/metrics/cadvisor", "/stats/summary", "/configz", "/logs/",
		"/statusz",
		"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1", "/debug/flags/v",
		"/containerLogs/default/a/b", "/exec/default/a/b", "/checkpoint/default/a/b",
	} {
		for _, method := range []string{"GET", "POST"} {
			if code := status(method, path, ""); code != http.StatusUnauthorized {
				t.Errorf("%s %s without a credential: %d", method, path, code)
			}
			for _, token := range []string{none, pods} {
				if code := status(method, path, token); code != http.StatusForbidden && code != http.StatusNotFound {
					t.Errorf("%s %s without a right: %d", method, path, code)
				}
			}
		}
	}
	port := fmt.Sprintf(":%04X", node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	for _, address := range listenAddresses(t, p.cmd.Process.Pid) {
		if !strings.HasSuffix(address, port) {
			t.Errorf("the node also listens on %s", address)
		}
	}
}

// listenAddresses returns the TCP addresses on which a process listens, in the format of the kernel.
func listenAddresses(t *testing.T, pid int) (addresses []string) {
	t.Helper()
	openFiles := map[string]bool{}
	descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range descriptors {
		to, _ := os.Readlink(d)
		openFiles[to] = true
	}
	for _, table := range []string{"tcp", "tcp6"} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			continue // without IPv6
		}
		for _, line := range strings.Split(string(data), "\n") {
			const address, state, inode, listening = 1, 3, 9, "0A"
			if fields := strings.Fields(line); len(fields) > inode && fields[state] == listening &&
				openFiles["socket:["+fields[inode]+"]"] {
				addresses = append(addresses, fields[address])
			}
		}
	}
	if len(addresses) == 0 {
		t.Error("the node does not listen")
	}
	return addresses
}
