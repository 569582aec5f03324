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

// world is a server, a client of its administrator's, and containers that are only written down, on a CRI socket.
type world struct {
	t      testing.TB
	server *testserver.Server
	kube   kubernetes.Interface
	*containers
}

func newWorld(t testing.TB, change ...func(*apiserver.Config)) *world {
	server := testserver.Start(t, testserver.With(func(c *apiserver.Config) {
		c.Controllers, c.Admission.Disable = nil, nil
		for _, of := range change {
			of(c)
		}
	}))
	w := &world{t: t, server: server, kube: kubernetes.NewForConfigOrDie(server.Config), containers: newContainers(t)}
	w.within("the account of new Pods", func(ctx context.Context) bool {
		_, err := w.kube.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	return w
}

func (w *world) within(what string, done func(context.Context) bool) {
	w.t.Helper()
	err := wait.PollUntilContextTimeout(w.t.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) { return done(ctx), nil })
	if err != nil {
		w.t.Fatalf("%s: not within a minute", what)
	}
}

// options are of a node that goes by a name, over the world's containers.
func (w *world) options(name string) Options {
	root, err := os.MkdirTemp("", "node") // a test's own has too long a path
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		mounts, _ := filepath.Glob(root + "/pods/*/volumes/*/*")
		for _, m := range mounts {
			_ = syscall.Unmount(m, syscall.MNT_DETACH) // it may be none
		}
		os.RemoveAll(root)
	})
	return Options{Kubeconfig: w.server.Kubeconfig, Name: name, Root: root, Endpoint: w.endpoint}
}

// process is a node that runs.
type process struct {
	t   testing.TB
	cmd *exec.Cmd
	out *bytes.Buffer
}

func (w *world) start(o Options, change ...func(*exec.Cmd)) *process {
	w.t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		w.t.Fatal(err)
	}
	p := &process{t: w.t, cmd: exec.Command("/proc/self/exe"), out: &bytes.Buffer{}}
	p.cmd.Env = append(os.Environ(), optionsVariable+"="+string(text))
	p.cmd.Dir, p.cmd.WaitDelay = o.Root, 10*time.Second
	p.cmd.Stderr, p.cmd.SysProcAttr = p.out, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, c := range change {
		c(p.cmd)
	}
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		p.kill()
		if w.t.Failed() || os.Getenv("NODE_TEST_LOG") != "" {
			w.t.Logf("node %s:\n%s", o.Name, p.out)
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
}

// end has it end as it should.
func (p *process) end() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("it ends with %v", err)
	}
}

// asked returns who has asked a signer for certificates.
func (w *world) asked(signer string) (who []string) {
	w.t.Helper()
	requests, err := w.kube.CertificatesV1().CertificateSigningRequests().List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range requests.Items {
		if r.Spec.SignerName == signer {
			who = append(who, r.Spec.Username)
		}
	}
	return who
}

// ready waits for a node that is.
func (w *world) ready(name string) *corev1.Node {
	w.t.Helper()
	var node *corev1.Node
	w.within("node "+name+" is ready", func(ctx context.Context) (ready bool) {
		var err error
		if node, err = w.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false
		}
		return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	})
	return node
}

// pod makes one that is bound to a node.
func (w *world) pod(node, name string, change ...func(*corev1.PodSpec)) *corev1.Pod {
	w.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Spec: corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1", Command: []string{"main"}}},
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
	}}
	for _, c := range change {
		c(&p.Spec)
	}
	p, err := w.kube.CoreV1().Pods("default").Create(w.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// running waits for a Pod whose containers are, and returns it.
func (w *world) running(name string) *corev1.Pod {
	w.t.Helper()
	var pod *corev1.Pod
	w.within("Pod "+name+" runs", func(ctx context.Context) bool {
		var err error
		pod, err = w.kube.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning && len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].Ready
	})
	return pod
}

// containers are a container runtime that starts no process: what is asked of it is written down. It outlives the nodes.
type containers struct {
	*fake.RemoteRuntime
	endpoint string
	logs     string // folder
	user     int64  // of each image; 0 is none

	mu      sync.Mutex
	configs map[string]*runtimeapi.ContainerConfig // by ID
}

func newContainers(t testing.TB) *containers {
	c := &containers{RemoteRuntime: fake.NewFakeRemoteRuntime(), configs: map[string]*runtimeapi.ContainerConfig{}}
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

func (c *containers) CreateContainer(ctx context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	response, err := c.RemoteRuntime.CreateContainer(ctx, r)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.configs[response.ContainerId] = r.Config
	}
	return response, err
}

// ContainerStatus has the path of the log, which the kubelet cleans up after.
func (c *containers) ContainerStatus(ctx context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	response, err := c.RemoteRuntime.ContainerStatus(ctx, r)
	if err == nil && response.Status.LogPath == "" {
		response.Status.LogPath = filepath.Join(c.logs, r.ContainerId+".log")
	}
	return response, err
}

// ImageStatus has the user of an image.
func (c *containers) ImageStatus(ctx context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	response, err := c.RemoteRuntime.ImageStatus(ctx, r)
	if err == nil && response.Image != nil && c.user != 0 {
		i := response.Image // which is the fake's own
		response.Image = &runtimeapi.Image{Id: i.Id, RepoTags: i.RepoTags, Size: i.Size, Spec: i.Spec, Uid: &runtimeapi.Int64Value{Value: c.user}}
	}
	return response, err
}

// ImageFsInfo says where images lie, which may not be nowhere.
func (c *containers) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	fs := &runtimeapi.FilesystemUsage{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/"}, UsedBytes: &runtimeapi.UInt64Value{}, InodesUsed: &runtimeapi.UInt64Value{}}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{fs}, ContainerFilesystems: []*runtimeapi.FilesystemUsage{fs}}, nil
}

// of returns how the containers of a Pod were asked for.
func (c *containers) of(pod *corev1.Pod) (all []*runtimeapi.ContainerConfig) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, config := range c.configs {
		if config.Labels["io.kubernetes.pod.uid"] == string(pod.UID) {
			all = append(all, config)
		}
	}
	return all
}

// left returns how many containers of a Pod have not ended.
func (c *containers) left(name string) (n int) {
	c.RuntimeService.Lock()
	defer c.RuntimeService.Unlock()
	for _, of := range c.RuntimeService.Containers {
		if of.Labels["io.kubernetes.pod.name"] == name && of.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			n++
		}
	}
	return n
}
