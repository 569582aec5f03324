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

// fixture is a runtime with one pod in it.
type fixture struct {
	*testing.T
	*Runtime
	ctx  context.Context
	pod  string
	conf *v1.PodSandboxConfig
	logs int
}

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
		t.Skip("makes namespaces, which takes root here; without root the node makes a user namespace first")
	}
}

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
	w := &fixture{T: t, Runtime: r, ctx: t.Context(), conf: conf}
	t.Cleanup(w.clean)
	if w.pod, err = r.RunPodSandbox(w.ctx, conf, ""); err != nil {
		t.Fatal(err)
	}
	return w
}

// clean ends everything, for processes outlive a runtime.
func (w *fixture) clean() {
	pods, _ := w.ListPodSandbox(context.Background(), nil)
	for _, pod := range pods {
		if err := w.RemovePodSandbox(context.Background(), pod.GetId()); err != nil {
			w.Error(err)
		}
	}
	if err := w.Close(context.Background()); err != nil {
		w.Error(err)
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

// sh is a container that runs a script.
func sh(script string) *v1.ContainerConfig {
	return &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "c"}, Image: &v1.ImageSpec{Image: "shell"},
		Command: []string{"sh", "-c", script},
		Linux: &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{
			NamespaceOptions: &v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER},
		}},
	}
}

func (w *fixture) start(c *v1.ContainerConfig) string {
	w.Helper()
	w.logs++
	c.LogPath = fmt.Sprint(w.logs, ".log")
	id, err := w.CreateContainer(w.ctx, w.pod, c, w.conf)
	if err == nil {
		err = w.StartContainer(w.ctx, id)
	}
	if err != nil {
		w.Fatal(err)
	}
	return id
}

// waitForExit waits for the end of a container.
func (w *fixture) waitForExit(id string) *v1.ContainerStatus {
	w.Helper()
	c, err := w.container(id)
	if err != nil {
		w.Fatal(err)
	}
	select {
	case <-c.done:
	case <-time.After(30 * time.Second):
		w.Fatal("the container does not end")
	}
	return w.status(id)
}

// eventually returns when something is the case. That it takes its time is no fault.
func (w *fixture) eventually(what string, done func() bool) {
	w.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); goruntime.Gosched() {
		if time.Now().After(deadline) {
			w.Fatalf("%s: in vain", what)
		}
	}
}

func (w *fixture) status(id string) *v1.ContainerStatus {
	w.Helper()
	s, err := w.ContainerStatus(w.ctx, id, false)
	if err != nil {
		w.Fatal(err)
	}
	return s.GetStatus()
}

// logText is what the log has, without times.
func (w *fixture) logText(id string) string {
	w.Helper()
	text, err := os.ReadFile(w.status(id).GetLogPath())
	if err != nil {
		w.Fatal(err)
	}
	return regexp.MustCompile(`(?m)^\S+Z `).ReplaceAllString(string(text), "")
}

// run runs a script to its end, and returns its log.
func (w *fixture) run(c *v1.ContainerConfig) string {
	w.Helper()
	id := w.start(c)
	s := w.waitForExit(id)
	log := w.logText(id)
	if s.GetExitCode() != 0 {
		w.Fatalf("exit code %d, %s: %s\n%s", s.GetExitCode(), s.GetReason(), s.GetMessage(), log)
	}
	return log
}

func (w *fixture) exec(id string, script string) string {
	w.Helper()
	out, errs, err := w.ExecSync(w.ctx, id, []string{"sh", "-c", script}, 0)
	if err != nil {
		w.Fatalf("%v: %s", err, errs)
	}
	return string(out)
}

// fifo is a pipe through which a test and a container tell each other how far they are.
func fifo(t *testing.T) (path string, wait func() string) {
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

func TestLogsAndExitCodes(t *testing.T) {
	w := newFixture(t, nil)
	long := strings.Repeat("x", 16<<10)
	id := w.start(sh(`echo out; echo err >&2; printf '%s' "$LONG"; printf last; exit 3`))
	if s := w.waitForExit(id); s.GetExitCode() != 3 || s.GetReason() != "Error" || s.GetFinishedAt() < s.GetStartedAt() || s.GetStartedAt() < s.GetCreatedAt() {
		t.Errorf("status: %v", s)
	}
	log := w.logText(id)
	if !strings.Contains(log, "stdout F out\n") || !strings.Contains(log, "stderr F err\n") || !strings.Contains(log, "stdout P last\n") {
		t.Errorf("log:\n%s", log)
	}
	parts := sh(`printf '%s-' "$LONG" "$LONG"; echo`)
	parts.Envs = []*v1.KeyValue{{Key: "LONG", Value: []byte(long)}}
	if log, want := w.run(parts), "stdout P "+long+"\nstdout P -"+long[1:]+"\nstdout F x-\n"; log != want {
		t.Errorf("a line of %d bytes has the log\n%.40q…%.40q", 2*len(long)+2, log, log[len(log)-40:])
	}
	killed := w.start(sh("kill -9 $$; sleep 1000"))
	w.StopContainer(w.ctx, killed, 0)
	if s := w.waitForExit(killed); s.GetExitCode() != 137 || s.GetReason() != "Error" {
		t.Errorf("killed: %v", s)
	}
	if s := w.waitForExit(w.start(sh("exit 0"))); s.GetReason() != "Completed" {
		t.Errorf("ended well: %v", s)
	}
}

func TestStartError(t *testing.T) {
	w := newFixture(t, nil)
	c := sh("")
	c.Image.Image, c.Command = "folder", []string{"no-such-program"}
	id, err := w.CreateContainer(w.ctx, w.pod, c, w.conf)
	if err != nil {
		t.Fatal(err)
	}
	err = w.StartContainer(w.ctx, id)
	if err == nil || !strings.Contains(err.Error(), `exec: "no-such-program": executable file not found in $PATH`) {
		t.Errorf("start: %v", err)
	}
	if s := w.status(id); s.GetState() != v1.ContainerState_CONTAINER_EXITED || s.GetExitCode() != 128 || s.GetReason() != "StartError" {
		t.Errorf("status: %v", s)
	}
	if err := w.StartContainer(w.ctx, id); err == nil {
		t.Error("a container is started twice")
	}
}

func TestContainerEnvironment(t *testing.T) {
	w := newFixture(t, func(_ *Options, c *v1.PodSandboxConfig) {
		c.DnsConfig = &v1.DNSConfig{Servers: []string{"192.0.2.53"}, Searches: []string{"svc.local"}, Options: []string{"ndots:5"}}
	})
	c := sh(`hostname; echo $$; ls /proc | grep -c '^[0-9]'; pwd; echo "$A $HOSTNAME $0"; cat /etc/resolv.conf; umask; ls /dev/null /dev/shm -d; echo x >/dev/shm/x`)
	c.Command[0], c.WorkingDir = "/any/name", "/not/there/on/the/host"
	c.Envs = []*v1.KeyValue{{Key: "A", Value: []byte("1")}, {Key: "A", Value: []byte("2")}}
	c.Command = append(c.Command, "zero")
	log := w.run(c)
	want := "web-host\n1\n\\d\n/not/there/on/the/host\n2 web-host zero\nnameserver 192.0.2.53\nsearch svc.local\noptions ndots:5\n0022\n/dev/null\n/dev/shm\n"
	if !regexp.MustCompile("^" + want + "$").MatchString(strings.ReplaceAll(log, "stdout F ", "")) {
		t.Errorf("log:\n%s\nwant:\n%s", log, want)
	}
	if _, err := os.Stat("/not"); err == nil {
		t.Error("a folder was made on the host")
	}
	if log := w.run(sh("cat /dev/shm/x")); log != "stdout F x\n" {
		t.Errorf("the pod's other container sees in /dev/shm: %s", log)
	}
	if _, err := os.Stat("/dev/shm/x"); err == nil {
		t.Error("the host sees the pod's /dev/shm")
	}
}

func TestMounts(t *testing.T) {
	w := newFixture(t, nil)
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
		{HostPath: secret, ContainerPath: "/toplevel/data/nested/file", Readonly: true}, // deeper than the next
		{HostPath: volume, ContainerPath: "/toplevel/data"},
		{HostPath: volume, ContainerPath: "/readonly", Readonly: true},
		{HostPath: secret, ContainerPath: "/var/run/secrets/kubernetes.io/serviceaccount/token", Readonly: true},
		{HostPath: secret, ContainerPath: "/etc/trellis-test/file", Readonly: true},
		{HostPath: secret, ContainerPath: "/dev/termination-log"},
	}
	if log := w.run(c); log != strings.Repeat("stdout F s3cret\n", 3)+"stdout F end\n" {
		t.Errorf("log:\n%s", log)
	}
	if text, err := os.ReadFile(filepath.Join(volume, "file")); string(text) != "written\n" {
		t.Errorf("the volume has %q, %v", text, err)
	}
	for _, path := range []string{"/toplevel", "/readonly", "/var/run/secrets/kubernetes.io", "/etc/trellis-test", "/dev/termination-log"} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s was made on the host", path)
		}
	}
	c = sh("ls -d /dev/termination-log /dev/ptmx /dev/loop-control 2>/dev/null | wc -l; ls /dev | wc -l")
	c.Mounts = []*v1.Mount{{HostPath: secret, ContainerPath: "/dev/termination-log"}}
	c.Linux.SecurityContext.Privileged = true
	if log := w.run(c); strings.HasPrefix(log, "stdout F 1\n") {
		t.Errorf("a privileged container sees in /dev:\n%s", log)
	}
}

// A volume may lie over all that the container is made of: the runtime's folder, other volumes, its program.
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
	w := newFixture(t, func(o *Options, _ *v1.PodSandboxConfig) {
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
	for image, command := range map[string][]string{"program": {"any", "-c", ". /above/nested/secret; ls " + base + "; exec sleep 1000"}, "folder": {"bin/script", "sh", "-c", "ls " + base + "; exec sleep 1000"}} {
		c := sh("")
		c.Image.Image, c.Command = image, command
		c.Mounts = []*v1.Mount{{HostPath: volume, ContainerPath: base}, {HostPath: secret, ContainerPath: "/above/nested/secret", Readonly: true}}
		id := w.start(c)
		w.eventually("it has said something, or ended", func() bool {
			return w.logText(id) != "" || w.status(id).GetState() == v1.ContainerState_CONTAINER_EXITED
		})
		out, errs, err := w.ExecSync(w.ctx, id, append(command[:len(command)-1:len(command)-1], ". /above/nested/secret; ls "+base), 0)
		if log := w.logText(id); log != "stdout F s3cret\n" {
			t.Errorf("%s: log: %s", image, log)
		}
		if err != nil || strings.Trim(string(out), "s3cret\n") != "" || len(errs) > 0 {
			t.Errorf("%s: a command in it: %q, %q, %v", image, out, errs, err)
		}
	}
	if made, err := os.ReadDir(volume); err != nil || len(made) > 0 {
		t.Errorf("in the volume: %v, %v", made, err)
	}
}

// A container runs as the user that its pod says, may be made of what is the node's alone, and write to its own output.
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
	w := newFixture(t, func(o *Options, _ *v1.PodSandboxConfig) {
		if o.Images, err = NewImages(o.Root, "shell="+base+"/shell"); err != nil {
			t.Fatal(err)
		}
	})
	const who = "echo $(id -u) $(id -g) $(id -G) $HOME"
	volume := t.TempDir()
	own := t.TempDir() // below it something is mounted that is not there: it stays the user's
	if err := errors.Join(os.Chown(volume, 0, 90), os.Chmod(volume, 0o770), os.Chown(own, 1234, 5678), os.Chmod(own, 0o700|os.ModeSticky), os.Chmod(filepath.Dir(own), 0o755)); err != nil {
		t.Fatal(err)
	}
	c := sh(who + "; echo again >/dev/stdout; echo >/volume/file; stat -c '%u %g %a' " + own + "; grep -c '^Cap.*[[:space:]]0*$' /proc/self/status; exec sleep 1000")
	c.Mounts = []*v1.Mount{{HostPath: volume, ContainerPath: "/volume"}, {HostPath: t.TempDir(), ContainerPath: own + "/below"}}
	c.Linux.SecurityContext.RunAsUser = &v1.Int64Value{Value: 1234}
	c.Linux.SecurityContext.RunAsGroup = &v1.Int64Value{Value: 5678}
	c.Linux.SecurityContext.SupplementalGroups = []int64{90}
	id := w.start(c)
	w.eventually("it has said all, or ended", func() bool {
		return strings.Count(w.logText(id), "\n") > 3 || w.status(id).GetState() == v1.ContainerState_CONTAINER_EXITED
	})
	if log := w.logText(id); log != "stdout F 1234 5678 5678 90 /\nstdout F again\nstdout F 1234 5678 1700\nstdout F 4\n" {
		t.Errorf("log:\n%s", log)
	}
	if out := w.exec(id, who+" >/dev/stdout"); out != "1234 5678 5678 90 /\n" {
		t.Errorf("a command in it: %s", out)
	}
	unix.Kill(w.shimPID(id), unix.SIGKILL)
	running, _ := w.container(id)
	w.eventually("it ends with its shim", func() bool { return !running.started.Init.Alive() })

	c = sh("id -u")
	c.Linux.SecurityContext.RunAsUser = &v1.Int64Value{Value: math.MaxInt32} // the largest that a pod may ask for
	if log := w.run(c); log != "stdout F 2147483647\n" {
		t.Errorf("as the last user: %s", log)
	}
	c = sh(who)
	c.Linux.SecurityContext.RunAsUser = &v1.Int64Value{Value: nonRootUser} // the kubelet sends the image's where a Pod names none
	c.Annotations = map[string]string{NonRootAnnotation: "false"}
	if log := w.run(c); log != "stdout F 0 0 0 "+os.Getenv("HOME")+"\n" {
		t.Errorf("as nobody in particular: %s", log)
	}
}

// A sandbox that cannot be finished is none: a Pod of which one was left could not be ended.
func TestFailedSandbox(t *testing.T) {
	w := newFixture(t, nil)
	conf := podConfig(t.TempDir(), "other")
	conf.Linux.Sysctls = map[string]string{"kernel.shm_no_such_sysctl": "1"}
	if id, err := w.RunPodSandbox(w.ctx, conf, ""); err == nil {
		t.Fatalf("%s has a sysctl that there is none of", id)
	}
	if all, err := w.ListPodSandbox(w.ctx, nil); err != nil || len(all) != 1 {
		t.Errorf("left: %v, %v", all, err)
	}
}

func TestStop(t *testing.T) {
	w := newFixture(t, nil)
	ready, wait := fifo(t)
	polite := w.start(sh(`trap 'echo bye; exit 7' TERM; echo >` + ready + `; while :; do sleep 0.05; done`))
	wait()
	if err := w.StopContainer(w.ctx, polite, 30); err != nil {
		t.Fatal(err)
	}
	if s := w.status(polite); s.GetExitCode() != 7 || w.logText(polite) != "stdout F bye\n" {
		t.Errorf("a container that heeds SIGTERM: %v\n%s", s, w.logText(polite))
	}
	hurried := w.start(sh(`trap 'echo bye; sleep 0.2; exit 7' TERM; echo >` + ready + `; while :; do sleep 0.05; done`))
	wait()
	ctx, cancel := context.WithCancel(w.ctx)
	stopped := make(chan error)
	go func() { stopped <- w.StopContainer(ctx, hurried, 30) }()
	for w.logText(hurried) == "" { // until it has been asked
		goruntime.Gosched()
	}
	cancel()
	if err := <-stopped; !errors.Is(err, context.Canceled) {
		t.Errorf("who asked does so no more: %v", err)
	}
	if err := w.StopContainer(w.ctx, hurried, 30); err != nil || w.status(hurried).GetExitCode() != 7 || w.logText(hurried) != "stdout F bye\n" {
		t.Errorf("asked again: %v, %v\n%s", err, w.status(hurried), w.logText(hurried))
	}
	deaf := w.start(sh(`trap '' TERM; sleep 1000 & echo $! >` + ready + `; wait`))
	wait()
	before := w.processesOf(deaf)
	if err := w.StopContainer(w.ctx, deaf, 1); err != nil {
		t.Fatal(err)
	}
	if s := w.status(deaf); s.GetExitCode() != 137 {
		t.Errorf("a container that does not: %v", s)
	}
	if len(before) != 2 {
		t.Fatalf("processes of the container: %v", before)
	}
	for _, id := range before {
		if id.Alive() {
			t.Errorf("process %d outlives its container", id.PID)
		}
	}
	if err := w.StopContainer(w.ctx, deaf, 1); err != nil {
		t.Errorf("stopping again: %v", err)
	}
	if err := w.StopContainer(w.ctx, "unknown", 1); err != nil {
		t.Errorf("stopping one that is not there: %v", err)
	}
}

// processesOf are the processes in the PID namespace of a container.
func (w *fixture) processesOf(id string) (list []process.ID) {
	c, _ := w.container(id)
	space, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", c.started.Init.PID))
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range all {
		if link, _ := os.Readlink(proc + "/ns/pid"); link == space {
			var pid int
			fmt.Sscanf(filepath.Base(proc), "%d", &pid)
			if p, err := process.Identify(pid); err == nil {
				list = append(list, p)
			}
		}
	}
	return list
}

func TestSharedProcesses(t *testing.T) {
	w := newFixture(t, func(_ *Options, c *v1.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = v1.NamespaceMode_POD
	})
	shared := func(script string) *v1.ContainerConfig {
		c := sh(script)
		c.Linux.SecurityContext.NamespaceOptions.Pid = v1.NamespaceMode_POD
		return c
	}
	ready, wait := fifo(t)
	away := "setsid"
	if probe, _ := w.container(w.start(shared(""))); len(probe.Cgroup.Folders) == 0 {
		away = "" // without a cgroup nothing tells whose that process is
	}
	first := w.start(shared(away + " sleep 1000 & sleep 1000 & echo >" + ready + "; exec sleep 1000"))
	wait()
	log := w.run(shared("ps -e -o comm= | sort | uniq -c | tr -s ' '"))
	if !strings.Contains(log, "1 trellis-pause") || !strings.Contains(log, "3 sleep") {
		t.Errorf("a container that shares processes sees:\n%s", log)
	}
	if err := w.StopContainer(w.ctx, first, 0); err != nil {
		t.Fatal(err)
	}
	if log := w.run(shared("ps -e -o comm= | grep -c sleep || true")); log != "stdout F 0\n" {
		t.Errorf("of a container that was stopped there is left:\n%s", log)
	}
}

func TestRotation(t *testing.T) {
	w := newFixture(t, nil)
	ready, wait := fifo(t)
	id := w.start(sh("echo one; echo >" + ready + "; read line <" + ready + "; echo two"))
	wait()
	path := w.status(id).GetLogPath()
	// What was written before is in the log when it has been read, which the shim has no need to have done yet.
	for deadline := time.Now().Add(30 * time.Second); w.logText(id) != "stdout F one\n" && time.Now().Before(deadline); {
		w.exec(id, "true")
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := w.ReopenContainerLog(w.ctx, id); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ready, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	w.waitForExit(id)
	if log := w.logText(id); log != "stdout F two\n" {
		t.Errorf("the new log:\n%s", log)
	}
	if err := w.ReopenContainerLog(w.ctx, id); err == nil {
		t.Error("the log of a container that has ended is opened again")
	}
}

// From a pod that is wanted to its command, and to its end.
func BenchmarkPod(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("takes root")
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
