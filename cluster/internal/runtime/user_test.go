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
// (CVE-2019-11245), and so does a command in it. Other Pods without runAsUser keep the node's user. A Pod's own user
// and groups are in force.
func TestRunAsNonRoot(t *testing.T) {
	w := newFixture(t, nil)
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
		context          *c
	}{
		"runAsNonRoot":                      {"true", "65532 65532 65532", &c{RunAsUser: imageUser}},
		"runAsNonRoot without a user":       {"true", "65532 65532 65532", &c{}},
		"runAsNonRoot with groups":          {"true", "65532 65532 65532 90", &c{RunAsUser: imageUser, SupplementalGroups: []int64{90}}},
		"runAsNonRoot with runAsGroup":      {"true", "65532 1000 1000", &c{RunAsUser: imageUser, RunAsGroup: number(1000)}},
		"runAsNonRoot with runAsGroup 0":    {"true", "65532 0 0", &c{RunAsUser: imageUser, RunAsGroup: number(0)}},
		"no word of a user":                 {"false", "0 0 0", &c{RunAsUser: imageUser}},
		"a group alone":                     {"false", "0 0 0 90", &c{RunAsUser: imageUser, SupplementalGroups: []int64{90}}},
		"runAsUser":                         {"", "1000 0 0", &c{RunAsUser: number(1000)}},
		"runAsUser that is the image's":     {"", "65532 0 0", &c{RunAsUser: imageUser}},
		"runAsUser 0":                       {"", "0 0 0", &c{RunAsUser: number(0)}},
		"an annotation of another's making": {"yes", "65532 0 0", &c{RunAsUser: imageUser}},
	} {
		config := sh("echo $(id -u) $(id -g) $(id -G)")
		of.context.NamespaceOptions = config.Linux.SecurityContext.NamespaceOptions
		config.Linux.SecurityContext = of.context
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

// With allowPrivilegeEscalation: false neither a container nor a command in it gains rights by a setuid program.
func TestNoNewPrivs(t *testing.T) {
	w := newFixture(t, nil)
	for _, forbidden := range []bool{true, false} {
		config := sh("grep NoNewPrivs /proc/self/status; exec sleep 1000")
		config.Linux.SecurityContext.RunAsUser, config.Linux.SecurityContext.NoNewPrivs = &v1.Int64Value{Value: 1000}, forbidden
		id, want := w.start(config), map[bool]string{true: "NoNewPrivs:\t1\n", false: "NoNewPrivs:\t0\n"}[forbidden]
		w.eventually("the container has written its line", func() bool { return w.logText(id) == "stdout F "+want })
		if out := w.exec(id, "grep NoNewPrivs /proc/self/status"); out != want {
			t.Errorf("a command in it: %s", out)
		}
	}
}

// A pod changes its own sysctls and none of the machine's, by their name or by their value (CVE-2022-0811).
func TestSysctls(t *testing.T) {
	w := newFixture(t, nil)
	const pattern, forced = "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/shm_rmid_forced"
	before, err := os.ReadFile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"kernel.core_pattern": "|/evil", "net/../kernel/core_pattern": "|/evil", "net....kernel.core_pattern": "|/evil", "kernel.shm/../core_pattern": "|/evil",
		"kernel.shm_rmid_forced": "1+kernel.core_pattern=|/evil", "vm.overcommit_memory": "1",
		"net.ipv4.ip_local_port_range": "1024 65000", // of a pod without a network of its own
	} {
		conf := podConfig(t.TempDir(), "evil")
		conf.Linux.Sysctls = map[string]string{name: value}
		if id, err := w.RunPodSandbox(w.ctx, conf, ""); err == nil {
			t.Errorf("%s=%q: the pod runs", name, value)
			w.RemovePodSandbox(w.ctx, id)
		}
	}
	if after, err := os.ReadFile(pattern); err != nil || string(after) != string(before) {
		t.Errorf("the machine's core_pattern is %q, %v", after, err)
	}
	conf := podConfig(t.TempDir(), "good")
	conf.Linux.Sysctls = map[string]string{"kernel.shm_rmid_forced": "1"}
	w.conf = conf
	if w.pod, err = w.RunPodSandbox(w.ctx, conf, ""); err != nil {
		t.Fatal(err)
	}
	if log := w.run(sh("cat " + forced)); log != "stdout F 1\n" {
		t.Errorf("the pod's own is %s", log)
	}
	if host, err := os.ReadFile(forced); err != nil || string(host) != "0\n" {
		t.Errorf("the machine's is %s, %v", host, err)
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
// error lists the fields to leave out.
func TestRunAsNonRootWithoutRoot(t *testing.T) {
	requireRoot(t)
	node := exec.Command("/proc/self/exe")
	node.Env = append(os.Environ(), confinedFolder+"="+t.TempDir())
	one := []syscall.SysProcIDMap{{HostID: 0, Size: 1}}
	node.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: one, GidMappings: one}
	out, err := node.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "becoming user 65532, group 65532") || !strings.Contains(string(out), "leave out runAsUser, runAsNonRoot,") {
		t.Errorf("%v: %s", err, out)
	}
}
