package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/trellis-k8s/trellis/cluster/internal/runtime/process"
)

// openInheritable opens a key that only root may read, its folder and the root folder without close-on-exec. It returns
// the targets of all descriptors of this process that remain open in an exec.
func openInheritable(t *testing.T) (key string, inheritable []string) {
	t.Helper()
	folder := t.TempDir()
	key = filepath.Join(folder, "key")
	if err := errors.Join(os.WriteFile(key, []byte("s3cret\n"), 0o600), os.Chmod(folder, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{key, folder, "/"} {
		fd, err := unix.Open(path, unix.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
	}
	for fd, to := range descriptorsOf(t, os.Getpid()) {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && fd > 2 &&
			flags&unix.FD_CLOEXEC == 0 && to != os.DevNull {
			inheritable = append(inheritable, to)
		}
	}
	if len(inheritable) < 3 {
		t.Fatalf("this process has only the inheritable descriptors %q", inheritable)
	}
	return key, inheritable
}

// descriptorsOf returns the target of each descriptor of a process.
func descriptorsOf(t *testing.T, pid int) map[int]string {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	all := map[int]string{}
	for _, entry := range list {
		var fd int
		fmt.Sscan(entry.Name(), &fd)
		if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd)); err == nil {
			all[fd] = to
		}
	}
	return all
}

// TestDescriptors checks that the processes of the runtime inherit no descriptors of the node. It checks a container,
// its probes, its commands with and without a terminal, a script as image, shims and the pause process of a Pod
// (CVE-2024-21626, CVE-2016-9962).
func TestDescriptors(t *testing.T) {
	_, inheritable := openInheritable(t)
	script := filepath.Join(t.TempDir(), "script")
	text := "#!/bin/sh\nls /proc/self/fd | tr '\\n' ' '; exec sleep 1000\n"
	if err := errors.Join(os.WriteFile(script, []byte(text), 0o755),
		os.Chmod(filepath.Dir(script), 0o755)); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, func(o *Options, _ *v1.PodSandboxConfig) {
		images, err := NewImages(o.Root, "shell=/bin/sh", "script="+script)
		if err != nil {
			t.Fatal(err)
		}
		o.Images = images
	})
	user := func(c *v1.ContainerConfig) *v1.ContainerConfig {
		c.Linux.SecurityContext.RunAsUser = &v1.Int64Value{Value: 1000}
		return c
	}
	scriptImage, terminal := sh(""), user(sh("exec sleep 1000"))
	scriptImage.Image.Image, scriptImage.Command = "script", nil
	terminal.Tty, terminal.Stdin = true, true
	for name, c := range map[string]*v1.ContainerConfig{
		"as root": sh("exec sleep 1000"), "as a user": user(sh("exec sleep 1000")), "with a terminal": terminal,
		"a script": scriptImage,
	} {
		id := f.start(c)
		running, started, err := f.runningContainer(id)
		if err != nil {
			t.Fatal(err)
		}
		f.eventually("a container "+name+" runs its command with only the standard streams", func() bool {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", started.Init.PID))
			return string(command) == "sleep\n" && len(descriptorsOf(t, started.Init.PID)) == 3
		})
		if name == "a script" {
			continue // the image replaces the program of every command
		}
		const list = "echo /proc/self/fd/*" // descriptors of the shell, which opens the folder as 3
		want := "/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/3"
		if out := strings.TrimSpace(f.exec(id, list)); out != want {
			t.Errorf("%s: a probe has %s", name, out)
		}
		for _, tty := range []bool{false, true} {
			var out bytes.Buffer
			enter := process.Enter{Spec: running.Spec, Init: started.Init, Command: []string{"sh", "-c", list},
				TTY: tty}
			if code, err := enter.Run(f.ctx, process.Streams{In: strings.NewReader(""), Out: &out,
				Err: io.Discard}); err != nil || code != 0 {
				t.Fatal(code, err)
			}
			if strings.TrimSpace(out.String()) != want {
				t.Errorf("%s: a command, terminal %t, has %s", name, tty, &out)
			}
		}
		f.checkDescriptors("the shim of a container "+name, f.shimPID(id), inheritable)
	}
	f.checkDescriptors("the pause process of a Pod", f.sandbox(f.pod).PauseProcess.PID, inheritable)
}

// checkDescriptors checks that a process has none of the inheritable descriptors, and that only the standard streams
// remain open in an exec of the process.
func (f *fixture) checkDescriptors(name string, pid int, inheritable []string) {
	f.Helper()
	for fd, to := range descriptorsOf(f.T, pid) {
		if slices.Contains(inheritable, to) {
			f.Errorf("%s has %s", name, to)
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
		var flags int
		if _, after, found := strings.Cut(string(info), "flags:"); found {
			fmt.Sscanf(strings.TrimSpace(after), "%o", &flags)
		}
		if err == nil && fd > 2 && flags&unix.O_CLOEXEC == 0 {
			f.Errorf("%s has descriptor %d (%s) without close-on-exec", name, fd, to)
		}
	}
}

// TestWorkingDirectory checks that a container enters its working directory with the rights of its user, and that links
// of /proc to descriptors are not followed. Neither the command nor an exec may read below a folder that the user may
// not enter (CVE-2024-21626).
func TestWorkingDirectory(t *testing.T) {
	key, _ := openInheritable(t)
	f := newFixture(t, nil)
	below := filepath.Join(filepath.Dir(key), "below")
	if err := errors.Join(os.Mkdir(below, 0o755), os.WriteFile(filepath.Join(below, "key"), []byte("s3cret\n"),
		0o644)); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(below, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	folders := []string{below, fmt.Sprintf("/proc/self/cwd/%s", below)}
	for fd := range 32 {
		folders = append(folders, fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	for _, folder := range folders {
		c := sh("cat key ../key below/key; exit 0")
		c.WorkingDir, c.LogPath = folder, fmt.Sprint(len(folder), filepath.Base(folder), ".log")
		c.Linux.SecurityContext.RunAsUser = &v1.Int64Value{Value: 1000}
		id, err := f.CreateContainer(f.ctx, f.pod, c, f.conf)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.StartContainer(f.ctx, id); err == nil {
			if f.waitForExit(id); strings.Contains(f.logText(id), "s3cret") {
				t.Errorf("the key is readable with the working directory %s", folder)
			}
		} else if folder == below && !strings.Contains(err.Error(),
			"cannot enter the working directory "+below+" as the container's user: ") {
			t.Errorf("error: %v", err)
		}
	}
	running, started, err := f.runningContainer(f.start(sh("exec sleep 1000")))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		var out bytes.Buffer
		enter := process.Enter{Spec: running.Spec, Init: started.Init,
			Command: []string{"sh", "-c", "cat key ../key below/key"}}
		enter.Spec.Dir, enter.Spec.User = folder, &process.User{UID: 1000, GID: 1000}
		enter.Run(f.ctx, process.Streams{Out: &out, Err: io.Discard})
		if strings.Contains(out.String(), "s3cret") {
			t.Errorf("a command in %s reads the key", folder)
		}
	}
}
