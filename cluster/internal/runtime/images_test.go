package runtime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestImages checks which program each image name is mapped to, and the errors of mappings.
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
	images, err := NewImages(dir, "gcr.io/my/app:1.0="+dir+"/app", "gcr.io/my/app="+dir+"/other",
		"gcr.io/star/*:v*="+dir+"/*.sh",
		"nginx="+dir+"/app", "gone="+dir+"/gone", "text="+dir+"/text", "folder="+dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := images.AddFile(list); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ image, path, wantErr string }{
		{"gcr.io/my/app:1.0", "app", ""}, // the first match
		{"gcr.io/my/app:2.0", "other", ""},
		{"gcr.io/my/app@sha256:00", "other", ""},
		{"gcr.io/my/app2", "",
			`image "gcr.io/my/app2" is not mapped to a program: map it with trellis-cluster up --image gcr.io/my/app2=PATH`},
		{"gcr.io/star/wide:v1", "wide.sh", ""},
		{"gcr.io/star/../text:v1", "", "must not contain .."},
		{"nginx:latest", "app", ""},
		{"docker.io/library/nginx:1.2", "app", ""},
		{"from.file/x:latest", "app", ""},
		{"gone:latest", "", "cannot find the program"},
		{"text", "", "is not executable"},
		{"folder", ".", ""},
	} {
		id, err := images.PullImage(t.Context(), &v1.ImageSpec{Image: c.image}, nil, nil)
		if c.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("%s: %v, want %q", c.image, err, c.wantErr)
			}
			if s, err := images.ImageStatus(t.Context(), &v1.ImageSpec{Image: c.image}, false); err != nil ||
				s.GetImage() != nil {
				t.Errorf("%s: status %v, %v", c.image, s, err)
			}
			continue
		}
		if want := "file://" + filepath.Join(dir, c.path); err != nil || id != want {
			t.Errorf("%s: %s, %v, want %s", c.image, id, err, want)
		}
		if s, err := images.ImageStatus(t.Context(), &v1.ImageSpec{Image: id}, false); err != nil ||
			s.GetImage().GetId() != id {
			t.Errorf("%s by its ID: %v, %v", c.image, s, err)
		}
	}
	for _, bad := range []string{"app", "=x", "app=", "app=./*"} {
		if _, err := NewImages(dir, bad); err == nil {
			t.Errorf("mapping %q is accepted", bad)
		}
	}
}

// TestCommands checks the argv of a container. It consists of command and args. Without command, it consists of the
// program's name and args.
func TestCommands(t *testing.T) {
	program := image{name: "x", path: "/opt/kube-scheduler-1"}
	folder := image{name: "x", path: "/opt", folder: true}
	for _, c := range []struct {
		image         image
		command, args []string
		program, argv string
	}{
		{program, []string{"/usr/local/bin/kube-scheduler", "--v=2"}, []string{"x"}, "/opt/kube-scheduler-1",
			"/usr/local/bin/kube-scheduler --v=2 x"},
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
	if _, _, err := folder.command(nil, nil); err == nil || !strings.Contains(err.Error(),
		"set the command of the container") {
		t.Errorf("a folder without a command: %v", err)
	}
}

// TestFolderImage checks that commands are looked up in the folder of an image, and then in PATH.
func TestFolderImage(t *testing.T) {
	f := newFixture(t, nil)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hello"), []byte("#!/bin/sh\necho hello from $0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := f.Images.add("mine="+dir, ""); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{"hello": "hello from " + dir + "/hello",
		"/hello": "hello from " + dir + "/hello", "echo": "x"} {
		c := sh("")
		c.Image.Image, c.Command, c.Args = "mine", []string{command}, []string{"x"}
		if log := f.run(c); log != "stdout F "+want+"\n" {
			t.Errorf("%s: %s", command, log)
		}
		list, err := f.ListContainers(f.ctx, &v1.ContainerFilter{PodSandboxId: f.pod})
		if err != nil || list[0].GetImage().GetImage() != "mine" || list[0].GetImageRef() != "file://"+dir {
			t.Errorf("image of the container: %v, %v", list, err)
		}
	}
}

// TestPauseImage checks that the built-in pause image runs until it is stopped.
func TestPauseImage(t *testing.T) {
	f := newFixture(t, nil)
	c := sh("")
	c.Image.Image, c.Command = pauseImage+":3.10", nil
	id := f.start(c)
	if err := f.StopContainer(f.ctx, id, 30); err != nil {
		t.Fatal(err)
	}
	if s := f.waitForExit(id); s.GetExitCode() != 0 || s.GetReason() != "Completed" {
		t.Errorf("status: %v", s)
	}
}
