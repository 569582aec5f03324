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

// nodeFolder tells this test, started again, that it is a node of this folder.
const nodeFolder = "TRELLIS_TEST_NODE"

// runTestNode makes a pod with three containers, says their IDs, and waits.
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

// What ran goes on when the node is killed, is found again by the next one, and nothing is lost.
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
	said, err := node.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	var ids [4]string // the pod, and its containers
	lines := bufio.NewScanner(said)
	for i := range ids {
		lines.Scan()
		ids[i] = lines.Text()
	}
	o, err := options(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "another node runs in") {
		t.Errorf("a second runtime in the folder of one that runs: %v", err)
	}
	node.Process.Kill()
	node.Wait()
	talk, err := os.OpenFile(fifos[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(talk, "one")
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
	w := &fixture{T: t, Runtime: r, ctx: t.Context(), pod: ids[0]}
	t.Cleanup(w.clean)
	if s := w.status(ids[1]); s.GetState() != v1.ContainerState_CONTAINER_RUNNING || s.GetStartedAt() == 0 {
		t.Errorf("a container that runs: %v", s)
	}
	if s := w.status(ids[2]); s.GetState() != v1.ContainerState_CONTAINER_EXITED || s.GetExitCode() != 4 || s.GetStartedAt() == 0 {
		t.Errorf("one that ended without a node: %v", s)
	}
	if s := w.status(ids[3]); s.GetState() != v1.ContainerState_CONTAINER_CREATED {
		t.Errorf("one that was not started: %v", s)
	}
	pods, err := w.ListPodSandbox(w.ctx, &v1.PodSandboxFilter{State: &v1.PodSandboxStateValue{State: v1.PodSandboxState_SANDBOX_READY}})
	if err != nil || len(pods) != 1 || pods[0].GetId() != ids[0] || pods[0].GetMetadata().GetName() != "web" {
		t.Errorf("pods: %v, %v", pods, err)
	}
	if out := w.exec(ids[1], "hostname"); out != "web-host\n" {
		t.Errorf("a command in an adopted container: %q", out)
	}
	fmt.Fprintln(talk, "two")
	talk.Close()
	if s := w.waitForExit(ids[1]); s.GetExitCode() != 6 || w.logText(ids[1]) != "stdout F got one\nstdout F got two\n" {
		t.Errorf("at its end: %v\n%s", s, w.logText(ids[1]))
	}
}

// A process that has the number of one that was ours is not ours.
func TestReusedPID(t *testing.T) {
	w := newFixture(t, nil)
	bystander := exec.Command("sleep", "1000")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer bystander.Process.Kill()
	them, err := process.Identify(bystander.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	s := w.sandbox(w.pod)
	ours := s.PauseProcess
	ours.Signal(unix.SIGKILL)
	s.PauseProcess = process.ID{PID: them.PID, Start: ours.Start + "0"} // both may have started in one tick of the clock
	if s.ready() {
		t.Error("a bystander passes for a pod")
	}
	if err := w.StopPodSandbox(w.ctx, w.pod); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PauseProcess.Open(); err == nil || !them.Alive() {
		t.Errorf("a bystander was reached: %v", err)
	}
}

// shimPID is the number of a container's shim.
func (w *fixture) shimPID(id string) (pid int) {
	w.Helper()
	c, _ := w.container(id)
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.started.Init.PID))
	if err != nil {
		w.Fatal(err)
	}
	_, after, _ := strings.Cut(string(stat), "PPid:")
	fmt.Sscan(after, &pid)
	return pid
}

func TestKilledShim(t *testing.T) {
	w := newFixture(t, nil)
	id := w.start(sh("sleep 1000"))
	c, _ := w.container(id)
	unix.Kill(w.shimPID(id), unix.SIGKILL)
	if s := w.waitForExit(id); s.GetExitCode() != 255 || s.GetReason() != "Unknown" {
		t.Errorf("status: %v", s)
	}
	w.eventually("a container ends with its shim", func() bool { return !c.started.Init.Alive() })
}

// How a container ended is known where the disk has no room for it: to the node that runs, and to the next one.
func TestFullDisk(t *testing.T) {
	var o Options
	w := newFixture(t, func(opened *Options, _ *v1.PodSandboxConfig) {
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
		ids[i] = w.start(sh(fmt.Sprintf("read line <%s; exit %d", fifos[i], 5+i)))
	}
	finish := func(i int) {
		if err := os.WriteFile(fifos[i], []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
	}
	closed, opened := func() {
		if err := w.Close(w.ctx); err != nil {
			t.Fatal(err)
		}
	}, func() {
		var err error
		if w.Runtime, err = New(o); err != nil {
			t.Fatal(err)
		}
	}
	rest := filepath.Join(o.Root, "rest")
	if err := os.WriteFile(rest, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	finish(0)
	if s := w.waitForExit(ids[0]); s.GetExitCode() != 5 || s.GetReason() != "Error" {
		t.Errorf("told to the node: %v", s)
	}
	c, _ := w.container(ids[1])
	closed()
	finish(1)
	w.eventually("it has ended", func() bool { return !c.started.Init.Alive() })
	opened()
	for i, id := range ids {
		if s := w.waitForExit(id); s.GetExitCode() != int32(5+i) {
			t.Errorf("told to the next node: %v", s)
		}
	}
	if err := os.Remove(rest); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		w.eventually("it is written down", func() bool { return exists(filepath.Join(w.containerFolder(id), process.ExitFile)) })
	}
	closed()
	opened()
	for i, id := range ids {
		if s := w.status(id); s.GetExitCode() != int32(5+i) || s.GetStartedAt() == 0 {
			t.Errorf("read by another: %v", s)
		}
	}
}

// A pod that can be reached no more, for its namespaces are those of another user namespace, is made anew when one of
// its containers is to be.
func TestPodInOtherUserNamespace(t *testing.T) {
	w := newFixture(t, nil)
	stranger := exec.Command("sleep", "1000")
	stranger.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	if err := stranger.Start(); err != nil {
		t.Skipf("no user namespaces here: %v", err)
	}
	defer stranger.Process.Kill()
	s := w.sandbox(w.pod)
	if s.PauseProcess.InOtherUserNamespace() {
		t.Error("a pod of this node is foreign")
	}
	s.PauseProcess.Signal(unix.SIGKILL)
	var err error
	if s.PauseProcess, err = process.Identify(stranger.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if _, err := w.CreateContainer(w.ctx, w.pod, sh(""), w.conf); err == nil || !strings.Contains(err.Error(), "it is made anew") {
		t.Errorf("a container of it: %v", err)
	}
	if s.ready() {
		t.Error("it still counts as one that runs")
	}
}
