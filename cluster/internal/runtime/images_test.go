package runtime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestImages(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"app", "other", "wide.sh", "text"} {
		mode := os.FileMode(0o755)
		if name == "text" {
			mode = 0o644
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	list := filepath.Join(dir, "list")
	if err := os.WriteFile(list, []byte("# images\nfrom.file/x=app # a comment\n\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	images, err := NewImages(dir, "gcr.io/my/app:1.0="+dir+"/app", "gcr.io/my/app="+dir+"/other", "gcr.io/star/*:v*="+dir+"/*.sh",
		"nginx="+dir+"/app", "gone="+dir+"/gone", "text="+dir+"/text", "folder="+dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := images.AddFile(list); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ image, path, complaint string }{
		{"gcr.io/my/app:1.0", "app", ""}, // the first that fits
		{"gcr.io/my/app:2.0", "other", ""},
		{"gcr.io/my/app@sha256:00", "other", ""},
		{"gcr.io/my/app2", "", `no program stands for image "gcr.io/my/app2": map one with trellis-cluster up --image gcr.io/my/app2=PATH`},
		{"gcr.io/star/wide:v1", "wide.sh", ""},
		{"gcr.io/star/../text:v1", "", ".. has no place"},
		{"nginx:latest", "app", ""},
		{"docker.io/library/nginx:1.2", "app", ""},
		{"from.file/x:latest", "app", ""},
		{"gone:latest", "", "is not there"},
		{"text", "", "may not be executed"},
		{"folder", ".", ""},
	} {
		id, err := images.PullImage(t.Context(), &v1.ImageSpec{Image: c.image}, nil, nil)
		if c.complaint != "" {
			if err == nil || !strings.Contains(err.Error(), c.complaint) {
				t.Errorf("%s: %v, want %q", c.image, err, c.complaint)
			}
			if s, err := images.ImageStatus(t.Context(), &v1.ImageSpec{Image: c.image}, false); err != nil || s.GetImage() != nil {
				t.Errorf("%s: status %v, %v", c.image, s, err)
			}
			continue
		}
		if want := "file://" + filepath.Join(dir, c.path); err != nil || id != want {
			t.Errorf("%s: %s, %v, want %s", c.image, id, err, want)
		}
		if s, err := images.ImageStatus(t.Context(), &v1.ImageSpec{Image: id}, false); err != nil || s.GetImage().GetId() != id {
			t.Errorf("%s by its ID: %v, %v", c.image, s, err)
		}
	}
	for _, bad := range []string{"app", "=x", "app=", "app=./*"} {
		if _, err := NewImages(dir, bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// SCD: command is the argv of a program, its first word as written; without it, the program's name and args.
func TestCommands(t *testing.T) {
	program := image{name: "x", path: "/opt/kube-scheduler-1"}
	folder := image{name: "x", path: "/opt", folder: true}
	for _, c := range []struct {
		image         image
		command, args []string
		program, argv string
	}{
		{program, []string{"/usr/local/bin/kube-scheduler", "--v=2"}, []string{"x"}, "/opt/kube-scheduler-1", "/usr/local/bin/kube-scheduler --v=2 x"},
		{program, nil, []string{"a"}, "/opt/kube-scheduler-1", "kube-scheduler-1 a"},
		{program, nil, nil, "/opt/kube-scheduler-1", "kube-scheduler-1"},
		{folder, []string{"run"}, []string{"a"}, "", "run a"},
		{folder, nil, []string{"run"}, "", "run"},
		{image{name: pauseImage + ":3.10"}, nil, nil, "trellis-pause", "trellis-pause"},
	} {
		file, argv, err := c.image.command(c.command, c.args)
		if err != nil || file != c.program || strings.Join(argv, " ") != c.argv {
			t.Errorf("%v %v: %s %v, %v", c.command, c.args, file, argv, err)
		}
	}
	if _, _, err := folder.command(nil, nil); err == nil || !strings.Contains(err.Error(), "the pod must say which command to run") {
		t.Errorf("a folder without a command: %v", err)
	}
}

func TestFolderImage(t *testing.T) {
	w := newFixture(t, nil)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hello"), []byte("#!/bin/sh\necho hello from $0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := w.Images.add("mine="+dir, ""); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{"hello": "hello from " + dir + "/hello", "/hello": "hello from " + dir + "/hello", "echo": "x"} {
		c := sh("")
		c.Image.Image, c.Command, c.Args = "mine", []string{command}, []string{"x"}
		if log := w.run(c); log != "stdout F "+want+"\n" {
			t.Errorf("%s: %s", command, log)
		}
		list, err := w.ListContainers(w.ctx, &v1.ContainerFilter{PodSandboxId: w.pod})
		if err != nil || list[0].GetImage().GetImage() != "mine" || list[0].GetImageRef() != "file://"+dir {
			t.Errorf("its image: %v, %v", list, err)
		}
	}
}

func TestPauseImage(t *testing.T) {
	w := newFixture(t, nil)
	c := sh("")
	c.Image.Image, c.Command = pauseImage+":3.10", nil
	id := w.start(c)
	if err := w.StopContainer(w.ctx, id, 30); err != nil {
		t.Fatal(err)
	}
	if s := w.waitForExit(id); s.GetExitCode() != 0 || s.GetReason() != "Completed" {
		t.Errorf("status: %v", s)
	}
}
