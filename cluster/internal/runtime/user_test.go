package runtime

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A container whose Pod has runAsNonRoot and names no user runs as an unprivileged one, each time that it is started
// (CVE-2019-11245), and so does a command in it. Other Pods without runAsUser keep the node's user, and what a Pod says
// of user and groups is in force.
func TestRunAsNonRoot(t *testing.T) {
	w := open(t, nil)
	image, err := w.Images.ImageStatus(w.ctx, &v1.ImageSpec{Image: "shell"}, false)
	if err != nil {
		t.Fatal(err)
	}
	imageUser := image.GetImage().GetUid()
	if imageUser.GetValue() != 65532 {
		t.Errorf("the image's user is %v: the kubelet refuses runAsNonRoot with it", imageUser)
	}
	type c = v1.LinuxContainerSecurityContext
	number := func(n int64) *v1.Int64Value { return &v1.Int64Value{Value: n} }
	for name, of := range map[string]struct {
		annotation, want string
		context          c
	}{
		"runAsNonRoot":                      {"true", "65532 65532 65532", c{RunAsUser: imageUser}},
		"runAsNonRoot without a user":       {"true", "65532 65532 65532", c{}},
		"runAsNonRoot with groups":          {"true", "65532 65532 65532 90", c{RunAsUser: imageUser, SupplementalGroups: []int64{90}}},
		"runAsNonRoot with runAsGroup":      {"true", "65532 1000 1000", c{RunAsUser: imageUser, RunAsGroup: number(1000)}},
		"runAsNonRoot with runAsGroup 0":    {"true", "65532 0 0", c{RunAsUser: imageUser, RunAsGroup: number(0)}},
		"no word of a user":                 {"false", "0 0 0", c{RunAsUser: imageUser}},
		"a group alone":                     {"false", "0 0 0 90", c{RunAsUser: imageUser, SupplementalGroups: []int64{90}}},
		"runAsUser":                         {"", "1000 0 0", c{RunAsUser: number(1000)}},
		"runAsUser that is the image's":     {"", "65532 0 0", c{RunAsUser: imageUser}},
		"runAsUser 0":                       {"", "0 0 0", c{RunAsUser: number(0)}},
		"an annotation of another's making": {"yes", "65532 0 0", c{RunAsUser: imageUser}},
	} {
		config := sh("echo $(id -u) $(id -g) $(id -G)")
		of.context.NamespaceOptions = config.Linux.SecurityContext.NamespaceOptions
		config.Linux.SecurityContext = &of.context
		if of.annotation != "" {
			config.Annotations = map[string]string{NonRootAnnotation: of.annotation}
		}
		for range 2 {
			if log := w.run(config); log != "stdout F "+of.want+"\n" {
				t.Errorf("%s: %q, want %q", name, log, of.want)
			}
		}
	}
	config := sh("exec sleep 1000")
	config.Linux.SecurityContext.RunAsUser, config.Annotations = imageUser, map[string]string{NonRootAnnotation: "true"}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("s3cret"), 0o640); err != nil { // for the group 0, too
		t.Fatal(err)
	}
	if out := w.exec(w.start(config), "id -u; id -g; cat "+secret+" || true"); out != "65532\n65532\n" {
		t.Errorf("a command in it: %s", out)
	}
}

// confinedFolder has this test, started again, be a node of this folder that starts one container with runAsNonRoot.
const confinedFolder = "TRELLIS_TEST_CONFINED"

func runConfined(root string) error {
	o, err := options(root)
	if err != nil {
		return err
	}
	r, err := New(o)
	if err != nil {
		return err
	}
	ctx, conf := context.Background(), podConfig(root, "web")
	pod, err := r.RunPodSandbox(ctx, conf, "")
	if err != nil {
		return err
	}
	config := sh("id -u")
	config.Linux.SecurityContext.RunAsUser, config.Annotations = &v1.Int64Value{Value: nonRootUser}, map[string]string{NonRootAnnotation: "true"}
	id, err := r.CreateContainer(ctx, pod, config, conf)
	if err == nil {
		err = r.StartContainer(ctx, id)
	}
	return errors.Join(err, r.RemovePodSandbox(ctx, pod))
}

// A node that is root of a user namespace has one user there: a container with runAsNonRoot does not start, and the
// error says what to do.
func TestRunAsNonRootWithoutRoot(t *testing.T) {
	needRoot(t)
	node := exec.Command("/proc/self/exe")
	node.Env = append(os.Environ(), confinedFolder+"="+t.TempDir())
	one := []syscall.SysProcIDMap{{HostID: 0, Size: 1}}
	node.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: one, GidMappings: one}
	out, err := node.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "becoming user 65532, group 65532") || !strings.Contains(string(out), "leave out runAsUser, runAsNonRoot,") {
		t.Errorf("%v: %s", err, out)
	}
}
