package runtime

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/trellis-k8s/trellis/cluster/internal/runtime/process"
)

// nodeFolder is an environment variable with a folder. If it is set, the test program is a node in this folder.
const nodeFolder = "TRELLIS_TEST_NODE"

// runTestNode creates a Pod with three containers, prints their IDs, and blocks until it is killed.
func runTestNode(root string) {
	must := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	o, err := options(root)
	must(err)
	r, err := New(o)
	must(err)
	conf := podConfig(root, "web")
	pod, err := r.RunPodSandbox(context.Background(), conf, "")
	must(err)
	fmt.Println(pod)
	for i, script := range []string{
		`while read line; do echo "got $line"; done <` + filepath.Join(root, "fifo0") + "; exit 6",
		"read line <" + filepath.Join(root, "fifo1") + "; exit 4",
		"exit 1",
	} {
		c := sh(script)
		c.LogPath = fmt.Sprint(i, ".log")
		id, err := r.CreateContainer(context.Background(), pod, c, conf)
		must(err)
		if i < 2 {
			must(r.StartContainer(context.Background(), id))
		}
		fmt.Println(id)
	}
	select {}
}

// TestKilledNode checks that containers continue when the node is killed, and that the next node adopts them with their
// logs and exit statuses.
func TestKilledNode(t *testing.T) {
	requireRoot(t)
	root := t.TempDir()
	var fifos [2]string
	for i := range fifos {
		fifos[i] = filepath.Join(root, fmt.Sprint("fifo", i))
		if err := unix.Mkfifo(fifos[i], 0o666); err != nil {
			t.Fatal(err)
		}
	}
	node := exec.Command("/proc/self/exe")
	node.Env = append(os.Environ(), nodeFolder+"="+root)
	stdout, err := node.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	var ids [4]string // the Pod and its containers
	lines := bufio.NewScanner(stdout)
	for i := range ids {
		lines.Scan()
		ids[i] = lines.Text()
	}
	o, err := options(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "another node runs in") {
		t.Errorf("a second runtime in the same folder: %v", err)
	}
	node.Process.Kill()
	node.Wait()
	input, err := os.OpenFile(fifos[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(input, "one")
	ended, err := process.Shim{Folder: filepath.Join(root, "containers", ids[2])}.Watch()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(fifos[1], []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	<-ended

	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, Runtime: r, ctx: t.Context(), pod: ids[0]}
	t.Cleanup(f.clean)
	if s := f.status(ids[1]); s.GetState() != v1.ContainerState_CONTAINER_RUNNING || s.GetStartedAt() == 0 {
		t.Errorf("status of the running container: %v", s)
	}
	if s := f.status(ids[2]); s.GetState() != v1.ContainerState_CONTAINER_EXITED || s.GetExitCode() != 4 ||
		s.GetStartedAt() == 0 {
		t.Errorf("status of the container that ended without a node: %v", s)
	}
	if s := f.status(ids[3]); s.GetState() != v1.ContainerState_CONTAINER_CREATED {
		t.Errorf("status of the container that was not started: %v", s)
	}
	pods, err := f.ListPodSandbox(f.ctx,
		&v1.PodSandboxFilter{State: &v1.PodSandboxStateValue{State: v1.PodSandboxState_SANDBOX_READY}})
	if err != nil || len(pods) != 1 || pods[0].GetId() != ids[0] || pods[0].GetMetadata().GetName() != "web" {
		t.Errorf("pods: %v, %v", pods, err)
	}
	if out := f.exec(ids[1], "hostname"); out != "web-host\n" {
		t.Errorf("a command in an adopted container: %q", out)
	}
	fmt.Fprintln(input, "two")
	input.Close()
	if s := f.waitForExit(ids[1]); s.GetExitCode() != 6 || f.logText(ids[1]) != "stdout F got one\nstdout F got two\n" {
		t.Errorf("status of the adopted container after its end: %v\n%s", s, f.logText(ids[1]))
	}
}

// TestReusedPID checks that the runtime does not affect a process that has the PID of an earlier process of a Pod.
func TestReusedPID(t *testing.T) {
	f := newFixture(t, nil)
	bystander := exec.Command("sleep", "1000")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer bystander.Process.Kill()
	other, err := process.Identify(bystander.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	s := f.sandbox(f.pod)
	pause := s.PauseProcess
	pause.Signal(unix.SIGKILL)
	// both processes may have started in the same clock tick, so the test changes the start time
	s.PauseProcess = process.ID{PID: other.PID, Start: pause.Start + "0"}
	if s.ready() {
		t.Error("a Pod is ready whose pause process has ended")
	}
	if err := f.StopPodSandbox(f.ctx, f.pod); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PauseProcess.Open(); err == nil || !other.Alive() {
		t.Errorf("the runtime reached another process: %v", err)
	}
}

// shimPID returns the PID of a container's shim.
func (f *fixture) shimPID(id string) (pid int) {
	f.Helper()
	c, _ := f.container(id)
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.started.Init.PID))
	if err != nil {
		f.Fatal(err)
	}
	_, after, _ := strings.Cut(string(stat), "PPid:")
	fmt.Sscan(after, &pid)
	return pid
}

// TestKilledShim checks that a container ends when its shim is killed, and that its exit status has the reason
// Unknown.
func TestKilledShim(t *testing.T) {
	f := newFixture(t, nil)
	id := f.start(sh("sleep 1000"))
	c, _ := f.container(id)
	unix.Kill(f.shimPID(id), unix.SIGKILL)
	if s := f.waitForExit(id); s.GetExitCode() != 255 || s.GetReason() != "Unknown" {
		t.Errorf("status: %v", s)
	}
	f.eventually("a container ends with its shim", func() bool { return !c.started.Init.Alive() })
}

// TestInterruptedStart checks that a container stays in the state CREATED if the node ended before its command ran, and
// that it cannot be started again. The kubelet would not replace a container in the state EXITED if the restart policy
// of the Pod is Never. The shim of such a container has ended before the next node reads its files, or it ends later.
func TestInterruptedStart(t *testing.T) {
	var o Options
	f := newFixture(t, func(opened *Options, _ *v1.PodSandboxConfig) { o = *opened })
	early, err := f.CreateContainer(f.ctx, f.pod, sh("exit 1"), f.conf)
	if err != nil {
		t.Fatal(err)
	}
	if err := process.WriteFile(filepath.Join(f.containerFolder(early), process.SpecFile), process.Spec{}); err != nil {
		t.Fatal(err)
	}
	late := f.start(sh("sleep 1000"))
	if err := f.Close(f.ctx); err != nil {
		t.Fatal(err)
	}
	if f.Runtime, err = New(o); err != nil {
		t.Fatal(err)
	}
	if s := f.status(late); s.GetState() != v1.ContainerState_CONTAINER_RUNNING {
		t.Fatalf("status of the adopted container: %v", s)
	}
	shim := f.shimPID(late)
	if err := os.Remove(filepath.Join(f.containerFolder(late), process.StartedFile)); err != nil {
		t.Fatal(err)
	}
	unix.Kill(shim, unix.SIGKILL)
	for _, id := range []string{early, late} {
		f.eventually("the container has the state CREATED", func() bool {
			return f.status(id).GetState() == v1.ContainerState_CONTAINER_CREATED
		})
		if s := f.status(id); s.GetStartedAt() != 0 || s.GetFinishedAt() != 0 {
			t.Errorf("got status %v, want no times", s)
		}
		err := f.StartContainer(f.ctx, id)
		if err == nil || !strings.Contains(err.Error(), "has been started already") {
			t.Errorf("starting it again: %v", err)
		}
		if err := f.RemoveContainer(f.ctx, id); err != nil {
			t.Error(err)
		}
	}
}

// TestFullDisk checks that no exit status of a container is lost when the disk is full. The running node and the next
// node must return it.
func TestFullDisk(t *testing.T) {
	var o Options
	f := newFixture(t, func(opened *Options, _ *v1.PodSandboxConfig) {
		if err := unix.Mount("tmpfs", opened.Root, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
			t.Fatal(err)
		}
		root := opened.Root
		t.Cleanup(func() { unix.Unmount(root, unix.MNT_DETACH) })
		o = *opened
	})
	var ids, fifos [2]string
	for i := range ids {
		fifos[i] = filepath.Join(t.TempDir(), "fifo")
		if err := unix.Mkfifo(fifos[i], 0o666); err != nil {
			t.Fatal(err)
		}
		ids[i] = f.start(sh(fmt.Sprintf("read line <%s; exit %d", fifos[i], 5+i)))
	}
	finish := func(i int) {
		if err := os.WriteFile(fifos[i], []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
	}
	closeRuntime, openRuntime := func() {
		if err := f.Close(f.ctx); err != nil {
			t.Fatal(err)
		}
	}, func() {
		var err error
		if f.Runtime, err = New(o); err != nil {
			t.Fatal(err)
		}
	}
	filler := filepath.Join(o.Root, "rest")
	if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	finish(0)
	if s := f.waitForExit(ids[0]); s.GetExitCode() != 5 || s.GetReason() != "Error" {
		t.Errorf("status in the node: %v", s)
	}
	c, _ := f.container(ids[1])
	closeRuntime()
	finish(1)
	f.eventually("the container has ended", func() bool { return !c.started.Init.Alive() })
	openRuntime()
	for i, id := range ids {
		if s := f.waitForExit(id); s.GetExitCode() != int32(5+i) {
			t.Errorf("status in the next node: %v", s)
		}
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		f.eventually("the exit status is stored",
			func() bool { return exists(filepath.Join(f.containerFolder(id), process.ExitFile)) })
	}
	closeRuntime()
	openRuntime()
	for i, id := range ids {
		if s := f.status(id); s.GetExitCode() != int32(5+i) || s.GetStartedAt() == 0 {
			t.Errorf("status in a node that reads the files: %v", s)
		}
	}
}

// TestPodInOtherUserNamespace checks that CreateContainer stops a Pod whose namespaces belong to another user
// namespace, so that the kubelet recreates it.
func TestPodInOtherUserNamespace(t *testing.T) {
	f := newFixture(t, nil)
	sleep := exec.Command("sleep", "1000")
	sleep.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	if err := sleep.Start(); err != nil {
		t.Skipf("no user namespaces here: %v", err)
	}
	defer sleep.Process.Kill()
	s := f.sandbox(f.pod)
	if s.PauseProcess.InOtherUserNamespace() {
		t.Error("a Pod of this node is in another user namespace")
	}
	s.PauseProcess.Signal(unix.SIGKILL)
	var err error
	if s.PauseProcess, err = process.Identify(sleep.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if _, err := f.CreateContainer(f.ctx, f.pod, sh(""), f.conf); err == nil ||
		!strings.Contains(err.Error(), "the pod will be recreated") {
		t.Errorf("creating a container: %v", err)
	}
	if s.ready() {
		t.Error("the Pod is still ready")
	}
}
