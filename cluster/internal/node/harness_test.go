package node

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/fake"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/testserver"
)

// optionsVariable is an environment variable with Options in JSON. If it is set, the test program runs a node. Each
// node needs a process, because the kubelet has global state.
const optionsVariable = "NODE_TEST_OPTIONS"

// spawnVariable is an environment variable. If it is also set, the test program starts the node with Spawn.
const spawnVariable = "NODE_TEST_SPAWN"

// TestMain runs the tests, or a node if optionsVariable is set.
func TestMain(m *testing.M) {
	text := os.Getenv(optionsVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var o Options
	err := json.Unmarshal([]byte(text), &o)
	switch {
	case err != nil:
	case os.Getenv(spawnVariable) != "":
		os.Unsetenv(spawnVariable)
		err = Spawn(ctx, os.Stderr, Rootless())
	default:
		err = Run(ctx, o)
	}
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}

// fixture is an API server, a client of its administrator, and a fake container runtime.
type fixture struct {
	t      testing.TB
	server *testserver.Server
	kube   kubernetes.Interface
	*fakeRuntime
}

// newFixture starts a server with controllers and waits for the default service account.
func newFixture(t testing.TB, change ...func(*apiserver.Config)) *fixture {
	server := testserver.Start(t, testserver.With(func(c *apiserver.Config) {
		c.Controllers, c.Admission.Disable = nil, nil
		for _, of := range change {
			of(c)
		}
	}))
	f := &fixture{t: t, server: server, kube: kubernetes.NewForConfigOrDie(server.Config),
		fakeRuntime: newFakeRuntime(t)}
	f.eventually("the default service account exists", func(ctx context.Context) bool {
		_, err := f.kube.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	return f
}

// eventually polls until done returns true, and fails the test after a minute.
func (f *fixture) eventually(condition string, done func(context.Context) bool) {
	f.t.Helper()
	err := wait.PollUntilContextTimeout(f.t.Context(), 20*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) { return done(ctx), nil })
	if err != nil {
		f.t.Fatalf("not within a minute: %s", condition)
	}
}

// options returns the options of a node with the fake runtime.
func (f *fixture) options(name string) Options {
	root, err := os.MkdirTemp("", "node") // the path of t.TempDir is too long
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		mounts, _ := filepath.Glob(root + "/pods/*/volumes/*/*")
		for _, m := range mounts {
			_ = syscall.Unmount(m, syscall.MNT_DETACH) // may not be a mount
		}
		os.RemoveAll(root)
	})
	return Options{Kubeconfig: f.server.Kubeconfig, Name: name, Root: root, Endpoint: f.endpoint}
}

// nodeProcess is the process of a node.
type nodeProcess struct {
	t   testing.TB
	cmd *exec.Cmd
	out *bytes.Buffer
}

// start starts a node in a new process. The functions in change may change its command.
func (f *fixture) start(o Options, change ...func(*exec.Cmd)) *nodeProcess {
	f.t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		f.t.Fatal(err)
	}
	p := &nodeProcess{t: f.t, cmd: exec.Command("/proc/self/exe"), out: &bytes.Buffer{}}
	p.cmd.Env = append(os.Environ(), optionsVariable+"="+string(text))
	p.cmd.Dir, p.cmd.WaitDelay = o.Root, 10*time.Second
	p.cmd.Stderr, p.cmd.SysProcAttr = p.out, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, c := range change {
		c(p.cmd)
	}
	if err := p.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		p.kill()
		if f.t.Failed() || os.Getenv("NODE_TEST_LOG") != "" {
			f.t.Logf("node %s:\n%s", o.Name, p.out)
		}
	})
	return p
}

func (p *nodeProcess) kill() {
	_ = p.cmd.Process.Kill() // may have ended
	_ = p.cmd.Wait()
}

// stop sends SIGTERM and waits until the node has ended.
func (p *nodeProcess) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the node ends with %v", err)
	}
}

// csrUsers returns the users that have created CertificateSigningRequests for a signer.
func (f *fixture) csrUsers(signer string) (users []string) {
	f.t.Helper()
	requests, err := f.kube.CertificatesV1().CertificateSigningRequests().List(f.t.Context(), metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, r := range requests.Items {
		if r.Spec.SignerName == signer {
			users = append(users, r.Spec.Username)
		}
	}
	return users
}

// readyNode waits until a node is ready, and returns it.
func (f *fixture) readyNode(name string) *corev1.Node {
	f.t.Helper()
	var node *corev1.Node
	f.eventually("node "+name+" is ready", func(ctx context.Context) (ready bool) {
		var err error
		if node, err = f.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false
		}
		return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	})
	return node
}

// createPod creates a Pod that is bound to a node.
func (f *fixture) createPod(node, name string, change ...func(*corev1.PodSpec)) *corev1.Pod {
	f.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1",
				Command: []string{"main"}}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		}}
	for _, c := range change {
		c(&p.Spec)
	}
	p, err := f.kube.CoreV1().Pods("default").Create(f.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// runningPod waits until a Pod and its first container run, and returns the Pod.
func (f *fixture) runningPod(name string) *corev1.Pod {
	f.t.Helper()
	var pod *corev1.Pod
	f.eventually("Pod "+name+" runs", func(ctx context.Context) bool {
		var err error
		pod, err = f.kube.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning && len(pod.Status.ContainerStatuses) > 0 &&
			pod.Status.ContainerStatuses[0].Ready
	})
	return pod
}

// fakeRuntime is a container runtime on a CRI socket. It records the containers but starts no processes. It continues
// to run when nodes stop.
type fakeRuntime struct {
	*fake.RemoteRuntime
	endpoint string
	logs     string // folder
	user     int64  // user of each image; 0 means none

	mu      sync.Mutex
	configs map[string]*runtimeapi.ContainerConfig // by container ID
}

func newFakeRuntime(t testing.TB) *fakeRuntime {
	c := &fakeRuntime{RemoteRuntime: fake.NewFakeRemoteRuntime(), configs: map[string]*runtimeapi.ContainerConfig{}}
	c.RuntimeService.FakeStatus = &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true},
	}}
	c.ImageService.SetFakeImageSize(1)
	dir, err := os.MkdirTemp("", "cri")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(s, c)
	runtimeapi.RegisterImageServiceServer(s, c)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); os.RemoveAll(dir) })
	c.endpoint, c.logs = "unix://"+socket, dir
	return c
}

func (c *fakeRuntime) CreateContainer(
	ctx context.Context, r *runtimeapi.CreateContainerRequest,
) (*runtimeapi.CreateContainerResponse, error) {
	response, err := c.RemoteRuntime.CreateContainer(ctx, r)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.configs[response.ContainerId] = r.Config
	}
	return response, err
}

// ContainerStatus adds the path of the log, which the kubelet cleans up.
func (c *fakeRuntime) ContainerStatus(
	ctx context.Context, r *runtimeapi.ContainerStatusRequest,
) (*runtimeapi.ContainerStatusResponse, error) {
	response, err := c.RemoteRuntime.ContainerStatus(ctx, r)
	if err == nil && response.Status.LogPath == "" {
		response.Status.LogPath = filepath.Join(c.logs, r.ContainerId+".log")
	}
	return response, err
}

// ImageStatus adds the user of an image.
func (c *fakeRuntime) ImageStatus(
	ctx context.Context, r *runtimeapi.ImageStatusRequest,
) (*runtimeapi.ImageStatusResponse, error) {
	response, err := c.RemoteRuntime.ImageStatus(ctx, r)
	if err == nil && response.Image != nil && c.user != 0 {
		i := response.Image // shared with the fake, so it must not be changed
		response.Image = &runtimeapi.Image{Id: i.Id, RepoTags: i.RepoTags, Size: i.Size, Spec: i.Spec,
			Uid: &runtimeapi.Int64Value{Value: c.user}}
	}
	return response, err
}

// ImageFsInfo returns a file system of the images, which the kubelet requires.
func (c *fakeRuntime) ImageFsInfo(
	context.Context, *runtimeapi.ImageFsInfoRequest,
) (*runtimeapi.ImageFsInfoResponse, error) {
	fs := &runtimeapi.FilesystemUsage{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/"},
		UsedBytes: &runtimeapi.UInt64Value{}, InodesUsed: &runtimeapi.UInt64Value{}}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{fs},
		ContainerFilesystems: []*runtimeapi.FilesystemUsage{fs}}, nil
}

// configsOf returns the configurations of the containers of a Pod.
func (c *fakeRuntime) configsOf(pod *corev1.Pod) (all []*runtimeapi.ContainerConfig) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, config := range c.configs {
		if config.Labels["io.kubernetes.pod.uid"] == string(pod.UID) {
			all = append(all, config)
		}
	}
	return all
}

// runningContainers returns the number of running containers of a Pod.
func (c *fakeRuntime) runningContainers(name string) (n int) {
	c.RuntimeService.Lock()
	defer c.RuntimeService.Unlock()
	for _, container := range c.RuntimeService.Containers {
		if container.Labels["io.kubernetes.pod.name"] == name &&
			container.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			n++
		}
	}
	return n
}
