package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/trellis-k8s/trellis/cluster/internal/runtime/process"
)

// TestMain runs the tests. If this program is started as echoServer, or if nodeFolder or confinedFolder is set, it
// runs a server or a node for a test.
func TestMain(m *testing.M) {
	if os.Args[0] == echoServer {
		serveEcho(os.Args[1])
	}
	if root := os.Getenv(nodeFolder); root != "" {
		runTestNode(root)
	}
	if root := os.Getenv(confinedFolder); root != "" {
		if err := runConfined(root); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fixture is a runtime with one Pod.
type fixture struct {
	*testing.T
	*Runtime
	ctx  context.Context
	pod  string
	conf *v1.PodSandboxConfig
	logs int
}

// options returns the options of a runtime in root without a bridge.
func options(root string) (Options, error) {
	self, err := os.Executable()
	if err != nil {
		return Options{}, err
	}
	images, err := NewImages(root, "folder=/bin", "shell=/bin/sh", "echo="+self)
	return Options{
		Root: root, Images: images, Network: HostNetwork, NodeIP: netip.MustParseAddr("192.0.2.7"),
		CgroupParent: "/trellis-test", Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}, err
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to make namespaces; without root the node makes a user namespace first")
	}
}

// newFixture starts a runtime with one Pod. The function change may change the options and the Pod before the start.
func newFixture(t *testing.T, change func(*Options, *v1.PodSandboxConfig)) *fixture {
	t.Helper()
	requireRoot(t)
	o, err := options(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	conf := podConfig(t.TempDir(), "web")
	if change != nil {
		change(&o, conf)
	}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, Runtime: r, ctx: t.Context(), conf: conf}
	t.Cleanup(f.clean)
	if f.pod, err = r.RunPodSandbox(f.ctx, conf, ""); err != nil {
		t.Fatal(err)
	}
	return f
}

// clean removes all Pods and closes the runtime. The processes would otherwise outlive the runtime.
func (f *fixture) clean() {
	pods, _ := f.ListPodSandbox(context.Background(), nil)
	for _, pod := range pods {
		if err := f.RemovePodSandbox(context.Background(), pod.GetId()); err != nil {
			f.Error(err)
		}
	}
	if err := f.Close(context.Background()); err != nil {
		f.Error(err)
	}
}

func podConfig(logs, name string) *v1.PodSandboxConfig {
	return &v1.PodSandboxConfig{
		Metadata: &v1.PodSandboxMetadata{Name: name, Uid: name + "-uid", Namespace: "default"},
		Hostname: name + "-host", LogDirectory: logs, Labels: map[string]string{"app": name},
		Linux: &v1.LinuxPodSandboxConfig{SecurityContext: &v1.LinuxSandboxSecurityContext{
			NamespaceOptions: &v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER},
		}},
	}
}

// sh returns the configuration of a container that runs a script.
func sh(script string) *v1.ContainerConfig {
	return &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "c"}, Image: &v1.ImageSpec{Image: "shell"},
		Command: []string{"sh", "-c", script},
		Linux: &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{
			NamespaceOptions: &v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER},
		}},
	}
}

// start creates and starts a container in the Pod, and returns its ID.
func (f *fixture) start(c *v1.ContainerConfig) string {
	f.Helper()
	f.logs++
	c.LogPath = fmt.Sprint(f.logs, ".log")
	id, err := f.CreateContainer(f.ctx, f.pod, c, f.conf)
	if err == nil {
		err = f.StartContainer(f.ctx, id)
	}
	if err != nil {
		f.Fatal(err)
	}
	return id
}

// waitForExit waits until a container has ended and returns its status.
func (f *fixture) waitForExit(id string) *v1.ContainerStatus {
	f.Helper()
	c, err := f.container(id)
	if err != nil {
		f.Fatal(err)
	}
	select {
	case <-c.done:
	case <-time.After(30 * time.Second):
		f.Fatal("the container did not end within 30 s")
	}
	return f.status(id)
}

// eventually polls until done returns true, and fails the test after 30 s.
func (f *fixture) eventually(condition string, done func() bool) {
	f.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); goruntime.Gosched() {
		if time.Now().After(deadline) {
			f.Fatalf("not within 30 s: %s", condition)
		}
	}
}

func (f *fixture) status(id string) *v1.ContainerStatus {
	f.Helper()
	s, err := f.ContainerStatus(f.ctx, id, false)
	if err != nil {
		f.Fatal(err)
	}
	return s.GetStatus()
}

// logText returns the log of a container without times.
func (f *fixture) logText(id string) string {
	f.Helper()
	text, err := os.ReadFile(f.status(id).GetLogPath())
	if err != nil {
		f.Fatal(err)
	}
	return regexp.MustCompile(`(?m)^\S+Z `).ReplaceAllString(string(text), "")
}

// run runs a container until it ends, and returns its log.
func (f *fixture) run(c *v1.ContainerConfig) string {
	f.Helper()
	id := f.start(c)
	s := f.waitForExit(id)
	log := f.logText(id)
	if s.GetExitCode() != 0 {
		f.Fatalf("exit code %d, %s: %s\n%s", s.GetExitCode(), s.GetReason(), s.GetMessage(), log)
	}
	return log
}

// exec runs a script in a container and returns its output.
func (f *fixture) exec(id string, script string) string {
	f.Helper()
	out, errs, err := f.ExecSync(f.ctx, id, []string{"sh", "-c", script}, 0)
	if err != nil {
		f.Fatalf("%v: %s", err, errs)
	}
	return string(out)
}

// fifo creates a named pipe with which a test and a container synchronize. receive blocks until the container writes.
func fifo(t *testing.T) (path string, receive func() string) {
	path = filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o666); err != nil {
		t.Fatal(err)
	}
	return path, func() string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
}

// TestLogsAndExitCodes checks the log and the exit status of a container, and that a long line is logged in parts.
func TestLogsAndExitCodes(t *testing.T) {
	f := newFixture(t, nil)
	long := strings.Repeat("x", 16<<10)
	id := f.start(sh(`echo out; echo err >&2; printf '%s' "$LONG"; printf last; exit 3`))
	if s := f.waitForExit(id); s.GetExitCode() != 3 || s.GetReason() != "Error" ||
		s.GetFinishedAt() < s.GetStartedAt() || s.GetStartedAt() < s.GetCreatedAt() {
		t.Errorf("status: %v", s)
	}
	log := f.logText(id)
	if !strings.Contains(log, "stdout F out\n") || !strings.Contains(log, "stderr F err\n") ||
		!strings.Contains(log, "stdout P last\n") {
		t.Errorf("log:\n%s", log)
	}
	parts := sh(`printf '%s-' "$LONG" "$LONG"; echo`)
	parts.Envs = []*v1.KeyValue{{Key: "LONG", Value: []byte(long)}}
	if log, want := f.run(parts), "stdout P "+long+"\nstdout P -"+long[1:]+"\nstdout F x-\n"; log != want {
		t.Errorf("a line of %d bytes has the log\n%.40q…%.40q", 2*len(long)+2, log, log[len(log)-40:])
	}
	killed := f.start(sh("kill -9 $$; sleep 1000"))
	f.StopContainer(f.ctx, killed, 0)
	if s := f.waitForExit(killed); s.GetExitCode() != 137 || s.GetReason() != "Error" {
		t.Errorf("status of a killed container: %v", s)
	}
	if s := f.waitForExit(f.start(sh("exit 0"))); s.GetReason() != "Completed" {
		t.Errorf("status after exit code 0: %v", s)
	}
}

// TestStartError checks that a container whose program does not exist fails to start, and cannot be started again.
func TestStartError(t *testing.T) {
	f := newFixture(t, nil)
	c := sh("")
	c.Image.Image, c.Command = "folder", []string{"no-such-program"}
	id, err := f.CreateContainer(f.ctx, f.pod, c, f.conf)
	if err != nil {
		t.Fatal(err)
	}
	err = f.StartContainer(f.ctx, id)
	if err == nil || !strings.Contains(err.Error(), `exec: "no-such-program": executable file not found in $PATH`) {
		t.Errorf("start: %v", err)
	}
	if s := f.status(id); s.GetState() != v1.ContainerState_CONTAINER_EXITED || s.GetExitCode() != 128 ||
		s.GetReason() != "StartError" {
		t.Errorf("status: %v", s)
	}
	if err := f.StartContainer(f.ctx, id); err == nil {
		t.Error("a container is started twice")
	}
}

// TestContainerEnvironment checks the host name, processes, working directory, variables, DNS configuration and
// /dev/shm that a container sees. Nothing is created on the host.
func TestContainerEnvironment(t *testing.T) {
	f := newFixture(t, func(_ *Options, c *v1.PodSandboxConfig) {
		c.DnsConfig = &v1.DNSConfig{Servers: []string{"192.0.2.53"}, Searches: []string{"svc.local"},
			Options: []string{"ndots:5"}}
	})
	c := sh(`hostname; echo $$; ls /proc | grep -c '^[0-9]'; pwd; echo "$A $HOSTNAME $0"
		cat /etc/resolv.conf; umask; ls /dev/null /dev/shm -d; echo x >/dev/shm/x`)
	c.Command[0], c.WorkingDir = "/any/name", "/not/there/on/the/host"
	c.Envs = []*v1.KeyValue{{Key: "A", Value: []byte("1")}, {Key: "A", Value: []byte("2")}}
	c.Command = append(c.Command, "zero")
	log := f.run(c)
	want := "web-host\n1\n\\d\n/not/there/on/the/host\n2 web-host zero\nnameserver 192.0.2.53\nsearch " +
		"svc.local\noptions ndots:5\n0022\n/dev/null\n/dev/shm\n"
	if !regexp.MustCompile("^" + want + "$").MatchString(strings.ReplaceAll(log, "stdout F ", "")) {
		t.Errorf("log:\n%s\nwant:\n%s", log, want)
	}
	if _, err := os.Stat("/not"); err == nil {
		t.Error("a folder was created on the host")
	}
	if log := f.run(sh("cat /dev/shm/x")); log != "stdout F x\n" {
		t.Errorf("/dev/shm in another container of the Pod: %s", log)
	}
	if _, err := os.Stat("/dev/shm/x"); err == nil {
		t.Error("the Pod's /dev/shm is visible on the host")
	}
}

// TestMounts checks volumes at paths that do not exist on the host, nested and read-only volumes, and volumes in /dev.
func TestMounts(t *testing.T) {
	f := newFixture(t, nil)
	volume, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := sh(`set -e
		cat /var/run/secrets/kubernetes.io/serviceaccount/token /etc/trellis-test/file /toplevel/data/nested/file
		echo written >/toplevel/data/file
		echo no 2>/dev/null >/etc/trellis-test/file && exit 1
		echo no 2>/dev/null >/readonly/file && exit 1
		test -e /etc/passwd; test -e /usr/bin/env; test -e /dev/termination-log; echo >/dev/null
		echo end`)
	c.Mounts = []*v1.Mount{
		// below the mount point of the next volume
		{HostPath: secret, ContainerPath: "/toplevel/data/nested/file", Readonly: true},
		{HostPath: volume, ContainerPath: "/toplevel/data"},
		{HostPath: volume, ContainerPath: "/readonly", Readonly: true},
		{HostPath: secret, ContainerPath: "/var/run/secrets/kubernetes.io/serviceaccount/token", Readonly: true},
		{HostPath: secret, ContainerPath: "/etc/trellis-test/file", Readonly: true},
		{HostPath: secret, ContainerPath: "/dev/termination-log"},
	}
	if log := f.run(c); log != strings.Repeat("stdout F s3cret\n", 3)+"stdout F end\n" {
		t.Errorf("log:\n%s", log)
	}
	if text, err := os.ReadFile(filepath.Join(volume, "file")); string(text) != "written\n" {
		t.Errorf("got file %q in the volume, %v", text, err)
	}
	for _, path := range []string{"/toplevel", "/readonly", "/var/run/secrets/kubernetes.io", "/etc/trellis-test",
		"/dev/termination-log"} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s was created on the host", path)
		}
	}
	c = sh("ls -d /dev/termination-log /dev/ptmx /dev/loop-control 2>/dev/null | wc -l; ls /dev | wc -l")
	c.Mounts = []*v1.Mount{{HostPath: secret, ContainerPath: "/dev/termination-log"}}
	c.Linux.SecurityContext.Privileged = true
	if log := f.run(c); strings.HasPrefix(log, "stdout F 1\n") {
		t.Errorf("/dev in a privileged container:\n%s", log)
	}
}

// TestVolumeOverOthers checks that a volume may cover the runtime's folder, the sources of other volumes and the
// program of the container.
func TestVolumeOverOthers(t *testing.T) {
	base := t.TempDir()
	copyTo := func(name, from string) {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Join(base, filepath.Dir(name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(base, name), data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	copyTo("bin/shell", "/bin/sh")
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n. /above/nested/secret; exec \"$@\""), 0o600); err != nil {
		t.Fatal(err)
	}
	copyTo("folder/bin/script", script)
	f := newFixture(t, func(o *Options, _ *v1.PodSandboxConfig) {
		o.Root = filepath.Join(base, "root")
		var err error
		if o.Images, err = NewImages(o.Root, "program="+base+"/bin/shell", "folder="+base+"/folder"); err != nil {
			t.Fatal(err)
		}
	})
	secret, volume := filepath.Join(base, "secret"), filepath.Join(base, "volume")
	if err := os.WriteFile(secret, []byte("echo s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	for image, command := range map[string][]string{"program": {"any", "-c",
		". /above/nested/secret; ls " + base + "; exec sleep 1000"},
		"folder": {"bin/script", "sh", "-c", "ls " + base + "; exec sleep 1000"}} {
		c := sh("")
		c.Image.Image, c.Command = image, command
		c.Mounts = []*v1.Mount{{HostPath: volume, ContainerPath: base},
			{HostPath: secret, ContainerPath: "/above/nested/secret", Readonly: true}}
		id := f.start(c)
		f.eventually("the container has logged a line or ended", func() bool {
			return f.logText(id) != "" || f.status(id).GetState() == v1.ContainerState_CONTAINER_EXITED
		})
		out, errs, err := f.ExecSync(f.ctx, id, append(command[:len(command)-1:len(command)-1],
			". /above/nested/secret; ls "+base), 0)
		if log := f.logText(id); log != "stdout F s3cret\n" {
			t.Errorf("%s: log: %s", image, log)
		}
		if err != nil || strings.Trim(string(out), "s3cret\n") != "" || len(errs) > 0 {
			t.Errorf("%s: a command in the container: %q, %q, %v", image, out, errs, err)
		}
	}
	if made, err := os.ReadDir(volume); err != nil || len(made) > 0 {
		t.Errorf("created in the volume: %v, %v", made, err)
	}
}

// TestUser checks that a container runs as the user of its Pod, even if only the node may read the image. The
// container must be able to open its standard output, and must end when its shim ends.
func TestUser(t *testing.T) {
	base := t.TempDir()
	if err := os.Chmod(base, 0o700); err != nil {
		t.Fatal(err)
	}
	shell, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(base, "shell"), shell, 0o755); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, func(o *Options, _ *v1.PodSandboxConfig) {
		if o.Images, err = NewImages(o.Root, "shell="+base+"/shell"); err != nil {
			t.Fatal(err)
		}
	})
	const printUser = "echo $(id -u) $(id -g) $(id -G) $HOME"
	volume := t.TempDir()
	owned := t.TempDir() // must keep its owner although a mount point is created in it
	if err := errors.Join(os.Chown(volume, 0, 90), os.Chmod(volume, 0o770), os.Chown(owned, 1234, 5678),
		os.Chmod(owned, 0o700|os.ModeSticky), os.Chmod(filepath.Dir(owned), 0o755)); err != nil {
		t.Fatal(err)
	}
	c := sh(printUser + "; echo again >/dev/stdout; echo >/volume/file; stat -c '%u %g %a' " + owned +
		"; grep -c '^Cap.*[[:space:]]0*$' /proc/self/status; exec sleep 1000")
	c.Mounts = []*v1.Mount{{HostPath: volume, ContainerPath: "/volume"},
		{HostPath: t.TempDir(), ContainerPath: owned + "/below"}}
	c.Linux.SecurityContext.RunAsUser = &v1.Int64Value{Value: 1234}
	c.Linux.SecurityContext.RunAsGroup = &v1.Int64Value{Value: 5678}
	c.Linux.SecurityContext.SupplementalGroups = []int64{90}
	id := f.start(c)
	f.eventually("the container has logged all lines or ended", func() bool {
		return strings.Count(f.logText(id), "\n") > 3 || f.status(id).GetState() == v1.ContainerState_CONTAINER_EXITED
	})
	if log := f.logText(id); log != "stdout F 1234 5678 5678 90 /\nstdout F again\nstdout F 1234 5678 1700\nstdout "+
		"F 4\n" {
		t.Errorf("log:\n%s", log)
	}
	if out := f.exec(id, printUser+" >/dev/stdout"); out != "1234 5678 5678 90 /\n" {
		t.Errorf("a command in the container: %s", out)
	}
	unix.Kill(f.shimPID(id), unix.SIGKILL)
	running, _ := f.container(id)
	f.eventually("the container ends with its shim", func() bool { return !running.started.Init.Alive() })

	c = sh("id -u")
	c.Linux.SecurityContext.RunAsUser = &v1.Int64Value{Value: math.MaxInt32} // the largest valid runAsUser
	if log := f.run(c); log != "stdout F 2147483647\n" {
		t.Errorf("as the largest user: %s", log)
	}
	c = sh(printUser)
	// If a Pod sets no user, the kubelet sends the user of the image.
	c.Linux.SecurityContext.RunAsUser = &v1.Int64Value{Value: nonRootUser}
	c.Annotations = map[string]string{NonRootAnnotation: "false"}
	if log := f.run(c); log != "stdout F 0 0 0 "+os.Getenv("HOME")+"\n" {
		t.Errorf("without runAsUser: %s", log)
	}
}

// TestFailedSandbox checks that no sandbox remains if its start fails. The kubelet could not delete a Pod with an
// incomplete sandbox.
func TestFailedSandbox(t *testing.T) {
	f := newFixture(t, nil)
	conf := podConfig(t.TempDir(), "other")
	conf.Linux.Sysctls = map[string]string{"kernel.shm_no_such_sysctl": "1"}
	if id, err := f.RunPodSandbox(f.ctx, conf, ""); err == nil {
		t.Fatalf("sandbox %s started with an unknown sysctl", id)
	}
	if all, err := f.ListPodSandbox(f.ctx, nil); err != nil || len(all) != 1 {
		t.Errorf("got sandboxes %v, %v; want one", all, err)
	}
}

// TestStop checks that StopContainer sends the stop signal, kills the container after the timeout, and may be called
// again after its context has ended.
func TestStop(t *testing.T) {
	f := newFixture(t, nil)
	ready, receive := fifo(t)
	graceful := f.start(sh(`trap 'echo bye; exit 7' TERM; echo >` + ready + `; while :; do sleep 0.05; done`))
	receive()
	if err := f.StopContainer(f.ctx, graceful, 30); err != nil {
		t.Fatal(err)
	}
	if s := f.status(graceful); s.GetExitCode() != 7 || f.logText(graceful) != "stdout F bye\n" {
		t.Errorf("a container that handles SIGTERM: %v\n%s", s, f.logText(graceful))
	}
	interrupted := f.start(sh(`trap 'echo bye; sleep 0.2; exit 7' TERM; echo >` + ready +
		`; while :; do sleep 0.05; done`))
	receive()
	ctx, cancel := context.WithCancel(f.ctx)
	stopped := make(chan error)
	go func() { stopped <- f.StopContainer(ctx, interrupted, 30) }()
	for f.logText(interrupted) == "" { // until the container has received the signal
		goruntime.Gosched()
	}
	cancel()
	if err := <-stopped; !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: %v", err)
	}
	if err := f.StopContainer(f.ctx, interrupted, 30); err != nil || f.status(interrupted).GetExitCode() != 7 ||
		f.logText(interrupted) != "stdout F bye\n" {
		t.Errorf("stopping again: %v, %v\n%s", err, f.status(interrupted), f.logText(interrupted))
	}
	ignoring := f.start(sh(`trap '' TERM; sleep 1000 & echo $! >` + ready + `; wait`))
	receive()
	processes := f.processesOf(ignoring)
	if err := f.StopContainer(f.ctx, ignoring, 1); err != nil {
		t.Fatal(err)
	}
	if s := f.status(ignoring); s.GetExitCode() != 137 {
		t.Errorf("a container that ignores SIGTERM: %v", s)
	}
	if len(processes) != 2 {
		t.Fatalf("processes of the container: %v", processes)
	}
	for _, id := range processes {
		if id.Alive() {
			t.Errorf("process %d outlives its container", id.PID)
		}
	}
	if err := f.StopContainer(f.ctx, ignoring, 1); err != nil {
		t.Errorf("stopping again: %v", err)
	}
	if err := f.StopContainer(f.ctx, "unknown", 1); err != nil {
		t.Errorf("stopping an unknown container: %v", err)
	}
}

// processesOf returns the processes in the PID namespace of a container.
func (f *fixture) processesOf(id string) (list []process.ID) {
	c, _ := f.container(id)
	namespace, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", c.started.Init.PID))
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range all {
		if link, _ := os.Readlink(proc + "/ns/pid"); link == namespace {
			var pid int
			fmt.Sscanf(filepath.Base(proc), "%d", &pid)
			if p, err := process.Identify(pid); err == nil {
				list = append(list, p)
			}
		}
	}
	return list
}

// TestSharedProcesses checks that containers of a Pod with shareProcessNamespace see each other's processes, and that
// stopping a container ends all its processes.
func TestSharedProcesses(t *testing.T) {
	f := newFixture(t, func(_ *Options, c *v1.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = v1.NamespaceMode_POD
	})
	shared := func(script string) *v1.ContainerConfig {
		c := sh(script)
		c.Linux.SecurityContext.NamespaceOptions.Pid = v1.NamespaceMode_POD
		return c
	}
	ready, receive := fifo(t)
	prefix := "setsid"
	if probe, _ := f.container(f.start(shared(""))); len(probe.Cgroup.Folders) == 0 {
		prefix = "" // without a cgroup, StopContainer cannot find a process in another session
	}
	first := f.start(shared(prefix + " sleep 1000 & sleep 1000 & echo >" + ready + "; exec sleep 1000"))
	receive()
	log := f.run(shared("ps -e -o comm= | sort | uniq -c | tr -s ' '"))
	if !strings.Contains(log, "1 trellis-pause") || !strings.Contains(log, "3 sleep") {
		t.Errorf("processes in a container that shares its PID namespace:\n%s", log)
	}
	if err := f.StopContainer(f.ctx, first, 0); err != nil {
		t.Fatal(err)
	}
	if log := f.run(shared("ps -e -o comm= | grep -c sleep || true")); log != "stdout F 0\n" {
		t.Errorf("processes that remain of a stopped container:\n%s", log)
	}
}

// TestRotation checks that ReopenContainerLog continues in a new file after the log has been renamed.
func TestRotation(t *testing.T) {
	f := newFixture(t, nil)
	ready, receive := fifo(t)
	id := f.start(sh("echo one; echo >" + ready + "; read line <" + ready + "; echo two"))
	receive()
	path := f.status(id).GetLogPath()
	// The shim may not have read the first line yet.
	for deadline := time.Now().Add(30 * time.Second); f.logText(id) != "stdout F one\n" &&
		time.Now().Before(deadline); {
		f.exec(id, "true")
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := f.ReopenContainerLog(f.ctx, id); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ready, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	f.waitForExit(id)
	if log := f.logText(id); log != "stdout F two\n" {
		t.Errorf("the new log:\n%s", log)
	}
	if err := f.ReopenContainerLog(f.ctx, id); err == nil {
		t.Error("ReopenContainerLog succeeds for a container that has ended")
	}
}

// BenchmarkPod measures the time from RunPodSandbox until the command runs and the Pod is removed.
func BenchmarkPod(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("needs root")
	}
	o, err := options(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	r, err := New(o)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close(context.Background())
	conf := podConfig(b.TempDir(), "web")
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		pod, err := r.RunPodSandbox(b.Context(), conf, "")
		must(err)
		id, err := r.CreateContainer(b.Context(), pod, sh("exec sleep 1000"), conf)
		must(err)
		must(r.StartContainer(b.Context(), id))
		must(r.RemovePodSandbox(b.Context(), pod))
	}
}
