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

// optionsVariable has the test's program be a node in place of a test: a node is a process.
const optionsVariable = "NODE_TEST_OPTIONS"

// spawnVariable has it be one that spawns such a process.
const spawnVariable = "NODE_TEST_SPAWN"

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

// fixture is a server, a client of its administrator's, and containers that are only written down, on a CRI socket.
type fixture struct {
	t      testing.TB
	server *testserver.Server
	kube   kubernetes.Interface
	*fakeRuntime
}

func newFixture(t testing.TB, change ...func(*apiserver.Config)) *fixture {
	server := testserver.Start(t, testserver.With(func(c *apiserver.Config) {
		c.Controllers, c.Admission.Disable = nil, nil
		for _, of := range change {
			of(c)
		}
	}))
	f := &fixture{t: t, server: server, kube: kubernetes.NewForConfigOrDie(server.Config), fakeRuntime: newFakeRuntime(t)}
	f.eventually("the account of new Pods", func(ctx context.Context) bool {
		_, err := f.kube.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	return f
}

func (f *fixture) eventually(what string, done func(context.Context) bool) {
	f.t.Helper()
	err := wait.PollUntilContextTimeout(f.t.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) { return done(ctx), nil })
	if err != nil {
		f.t.Fatalf("%s: not within a minute", what)
	}
}

// options are of a node that goes by a name, over the world's containers.
func (f *fixture) options(name string) Options {
	root, err := os.MkdirTemp("", "node") // a test's own has too long a path
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		mounts, _ := filepath.Glob(root + "/pods/*/volumes/*/*")
		for _, m := range mounts {
			_ = syscall.Unmount(m, syscall.MNT_DETACH) // it may be none
		}
		os.RemoveAll(root)
	})
	return Options{Kubeconfig: f.server.Kubeconfig, Name: name, Root: root, Endpoint: f.endpoint}
}

// nodeProcess is a node that runs.
type nodeProcess struct {
	t   testing.TB
	cmd *exec.Cmd
	out *bytes.Buffer
}

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
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
}

// stop has it end as it should.
func (p *nodeProcess) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("it ends with %v", err)
	}
}

// csrUsers returns who has asked a signer for certificates.
func (f *fixture) csrUsers(signer string) (who []string) {
	f.t.Helper()
	requests, err := f.kube.CertificatesV1().CertificateSigningRequests().List(f.t.Context(), metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, r := range requests.Items {
		if r.Spec.SignerName == signer {
			who = append(who, r.Spec.Username)
		}
	}
	return who
}

// readyNode waits for a node that is.
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

// createPod makes one that is bound to a node.
func (f *fixture) createPod(node, name string, change ...func(*corev1.PodSpec)) *corev1.Pod {
	f.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Spec: corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1", Command: []string{"main"}}},
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

// runningPod waits for a Pod whose containers are, and returns it.
func (f *fixture) runningPod(name string) *corev1.Pod {
	f.t.Helper()
	var pod *corev1.Pod
	f.eventually("Pod "+name+" runs", func(ctx context.Context) bool {
		var err error
		pod, err = f.kube.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning && len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].Ready
	})
	return pod
}

// fakeRuntime are a container runtime that starts no process: what is asked of it is written down. It outlives the nodes.
type fakeRuntime struct {
	*fake.RemoteRuntime
	endpoint string
	logs     string // folder
	user     int64  // of each image; 0 is none

	mu      sync.Mutex
	configs map[string]*runtimeapi.ContainerConfig // by ID
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

func (c *fakeRuntime) CreateContainer(ctx context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	response, err := c.RemoteRuntime.CreateContainer(ctx, r)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.configs[response.ContainerId] = r.Config
	}
	return response, err
}

// ContainerStatus has the path of the log, which the kubelet cleans up after.
func (c *fakeRuntime) ContainerStatus(ctx context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	response, err := c.RemoteRuntime.ContainerStatus(ctx, r)
	if err == nil && response.Status.LogPath == "" {
		response.Status.LogPath = filepath.Join(c.logs, r.ContainerId+".log")
	}
	return response, err
}

// ImageStatus has the user of an image.
func (c *fakeRuntime) ImageStatus(ctx context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	response, err := c.RemoteRuntime.ImageStatus(ctx, r)
	if err == nil && response.Image != nil && c.user != 0 {
		i := response.Image // which is the fake's own
		response.Image = &runtimeapi.Image{Id: i.Id, RepoTags: i.RepoTags, Size: i.Size, Spec: i.Spec, Uid: &runtimeapi.Int64Value{Value: c.user}}
	}
	return response, err
}

// ImageFsInfo says where images lie, which may not be nowhere.
func (c *fakeRuntime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	fs := &runtimeapi.FilesystemUsage{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/"}, UsedBytes: &runtimeapi.UInt64Value{}, InodesUsed: &runtimeapi.UInt64Value{}}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{fs}, ContainerFilesystems: []*runtimeapi.FilesystemUsage{fs}}, nil
}

// configsOf returns how the containers of a Pod were asked for.
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

// runningContainers returns how many containers of a Pod have not ended.
func (c *fakeRuntime) runningContainers(name string) (n int) {
	c.RuntimeService.Lock()
	defer c.RuntimeService.Unlock()
	for _, of := range c.RuntimeService.Containers {
		if of.Labels["io.kubernetes.pod.name"] == name && of.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			n++
		}
	}
	return n
}
