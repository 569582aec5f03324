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

// openInheritable opens a root-only key, the folder that holds it and the root folder, as a careless library does: without
// close-on-exec. It returns the targets of those descriptors of this process that an exec keeps.
func openInheritable(t *testing.T) (key string, kept []string) {
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
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && fd > 2 && flags&unix.FD_CLOEXEC == 0 && to != os.DevNull {
			kept = append(kept, to)
		}
	}
	if len(kept) < 3 {
		t.Fatalf("this process leaks %q alone", kept)
	}
	return key, kept
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

// Every process that the runtime starts has exactly its own descriptors, also if the node has others: a container, its
// probes and commands with and without a terminal, a script that is an image, shims and the holder of a pod
// (CVE-2024-21626, CVE-2016-9962).
func TestDescriptors(t *testing.T) {
	_, kept := openInheritable(t)
	script := filepath.Join(t.TempDir(), "script")
	text := "#!/bin/sh\nls /proc/self/fd | tr '\\n' ' '; exec sleep 1000\n"
	if err := errors.Join(os.WriteFile(script, []byte(text), 0o755), os.Chmod(filepath.Dir(script), 0o755)); err != nil {
		t.Fatal(err)
	}
	w := newFixture(t, func(o *Options, _ *v1.PodSandboxConfig) {
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
	scripted, terminal := sh(""), user(sh("exec sleep 1000"))
	scripted.Image.Image, scripted.Command = "script", nil
	terminal.Tty, terminal.Stdin = true, true
	for name, c := range map[string]*v1.ContainerConfig{
		"as root": sh("exec sleep 1000"), "as a user": user(sh("exec sleep 1000")), "with a terminal": terminal, "a script": scripted,
	} {
		id := w.start(c)
		running, started, err := w.runningContainer(id)
		if err != nil {
			t.Fatal(err)
		}
		w.eventually("a container "+name+" runs its command, with the standard streams alone", func() bool {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", started.Init.PID))
			return string(command) == "sleep\n" && len(descriptorsOf(t, started.Init.PID)) == 3
		})
		if name == "a script" {
			continue // the image is its program: it runs in place of any command
		}
		const list = "echo /proc/self/fd/*" // of the shell itself, which opens the folder as 3
		want := "/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/3"
		if out := strings.TrimSpace(w.exec(id, list)); out != want {
			t.Errorf("%s: a probe has %s", name, out)
		}
		for _, tty := range []bool{false, true} {
			var out bytes.Buffer
			enter := process.Enter{Spec: running.Spec, Init: started.Init, Command: []string{"sh", "-c", list}, TTY: tty}
			if code, err := enter.Run(w.ctx, process.Streams{In: strings.NewReader(""), Out: &out, Err: io.Discard}); err != nil || code != 0 {
				t.Fatal(code, err)
			}
			if strings.TrimSpace(out.String()) != want {
				t.Errorf("%s: a command, terminal %t, has %s", name, tty, &out)
			}
		}
		w.checkDescriptors("the shim of a container "+name, w.shimPID(id), kept)
	}
	w.checkDescriptors("the holder of a pod", w.sandbox(w.pod).PauseProcess.PID, kept)
}

// checkDescriptors checks that a process has none of the leaked descriptors, and itself keeps only the standard streams in an exec.
func (w *fixture) checkDescriptors(name string, pid int, kept []string) {
	w.Helper()
	for fd, to := range descriptorsOf(w.T, pid) {
		if slices.Contains(kept, to) {
			w.Errorf("%s has %s", name, to)
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
		var flags int
		if _, after, found := strings.Cut(string(info), "flags:"); found {
			fmt.Sscanf(strings.TrimSpace(after), "%o", &flags)
		}
		if err == nil && fd > 2 && flags&unix.O_CLOEXEC == 0 {
			w.Errorf("%s keeps %d, %s, in an exec", name, fd, to)
		}
	}
}

// A container enters its working directory with the rights of its user, and a link of /proc to a descriptor leads
// nowhere: neither its command nor an exec reads below a folder that is closed to the user (CVE-2024-21626).
func TestWorkingDirectory(t *testing.T) {
	key, _ := openInheritable(t)
	w := newFixture(t, nil)
	below := filepath.Join(filepath.Dir(key), "below")
	if err := errors.Join(os.Mkdir(below, 0o755), os.WriteFile(filepath.Join(below, "key"), []byte("s3cret\n"), 0o644)); err != nil {
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
		id, err := w.CreateContainer(w.ctx, w.pod, c, w.conf)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.StartContainer(w.ctx, id); err == nil {
			if w.waitForExit(id); strings.Contains(w.logText(id), "s3cret") {
				t.Errorf("the working directory %s shows the key", folder)
			}
		} else if folder == below && !strings.Contains(err.Error(), "cannot enter the working directory "+below+" as the container's user: ") {
			t.Errorf("error: %v", err)
		}
	}
	running, started, err := w.runningContainer(w.start(sh("exec sleep 1000")))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		var out bytes.Buffer
		enter := process.Enter{Spec: running.Spec, Init: started.Init, Command: []string{"sh", "-c", "cat key ../key below/key"}}
		enter.Spec.Dir, enter.Spec.User = folder, &process.User{UID: 1000, GID: 1000}
		enter.Run(w.ctx, process.Streams{Out: &out, Err: io.Discard})
		if strings.Contains(out.String(), "s3cret") {
			t.Errorf("a command in %s reads the key", folder)
		}
	}
}
