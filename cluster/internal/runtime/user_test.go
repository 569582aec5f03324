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

// TestRunAsNonRoot checks the user of containers. With runAsNonRoot and without runAsUser, a container and its
// commands must run as an unprivileged user at each start (CVE-2019-11245). Other Pods without runAsUser must have the
// node's user. The user and the groups in a Pod must be applied.
func TestRunAsNonRoot(t *testing.T) {
	f := newFixture(t, nil)
	image, err := f.Images.ImageStatus(f.ctx, &v1.ImageSpec{Image: "shell"}, false)
	if err != nil {
		t.Fatal(err)
	}
	imageUser := image.GetImage().GetUid()
	if imageUser.GetValue() != 65532 {
		t.Errorf("the image's user is %v: the kubelet rejects runAsNonRoot with this user", imageUser)
	}
	type c = v1.LinuxContainerSecurityContext
	number := func(n int64) *v1.Int64Value { return &v1.Int64Value{Value: n} }
	for name, of := range map[string]struct {
		annotation, want string
		context          *c
	}{
		"runAsNonRoot":                {"true", "65532 65532 65532", &c{RunAsUser: imageUser}},
		"runAsNonRoot without a user": {"true", "65532 65532 65532", &c{}},
		"runAsNonRoot with groups": {"true", "65532 65532 65532 90",
			&c{RunAsUser: imageUser, SupplementalGroups: []int64{90}}},
		"runAsNonRoot with runAsGroup": {"true", "65532 1000 1000",
			&c{RunAsUser: imageUser, RunAsGroup: number(1000)}},
		"runAsNonRoot with runAsGroup 0": {"true", "65532 0 0", &c{RunAsUser: imageUser, RunAsGroup: number(0)}},
		"without a user":                 {"false", "0 0 0", &c{RunAsUser: imageUser}},
		"only a group": {"false", "0 0 0 90",
			&c{RunAsUser: imageUser, SupplementalGroups: []int64{90}}},
		"runAsUser":                        {"", "1000 0 0", &c{RunAsUser: number(1000)}},
		"runAsUser that is the image's":    {"", "65532 0 0", &c{RunAsUser: imageUser}},
		"runAsUser 0":                      {"", "0 0 0", &c{RunAsUser: number(0)}},
		"an annotation of another program": {"yes", "65532 0 0", &c{RunAsUser: imageUser}},
	} {
		config := sh("echo $(id -u) $(id -g) $(id -G)")
		of.context.NamespaceOptions = config.Linux.SecurityContext.NamespaceOptions
		config.Linux.SecurityContext = of.context
		if of.annotation != "" {
			config.Annotations = map[string]string{NonRootAnnotation: of.annotation}
		}
		for range 2 {
			if log := f.run(config); log != "stdout F "+of.want+"\n" {
				t.Errorf("%s: %q, want %q", name, log, of.want)
			}
		}
	}
	config := sh("exec sleep 1000")
	config.Linux.SecurityContext.RunAsUser, config.Annotations = imageUser, map[string]string{NonRootAnnotation: "true"}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("s3cret"), 0o640); err != nil { // readable by group 0 too
		t.Fatal(err)
	}
	if out := f.exec(f.start(config), "id -u; id -g; cat "+secret+" || true"); out != "65532\n65532\n" {
		t.Errorf("a command in the container: %s", out)
	}
}

// TestNoNewPrivs checks that with allowPrivilegeEscalation: false, neither a container nor a command in it can gain
// rights through a setuid program.
func TestNoNewPrivs(t *testing.T) {
	f := newFixture(t, nil)
	for _, forbidden := range []bool{true, false} {
		config := sh("grep NoNewPrivs /proc/self/status; exec sleep 1000")
		config.Linux.SecurityContext.RunAsUser, config.Linux.SecurityContext.NoNewPrivs = &v1.Int64Value{Value: 1000},
			forbidden
		id, want := f.start(config), map[bool]string{true: "NoNewPrivs:\t1\n", false: "NoNewPrivs:\t0\n"}[forbidden]
		f.eventually("the container has written its line", func() bool { return f.logText(id) == "stdout F "+want })
		if out := f.exec(id, "grep NoNewPrivs /proc/self/status"); out != want {
			t.Errorf("a command in the container: %s", out)
		}
	}
}

// TestSysctls checks that a Pod can change the sysctls of its namespaces, but no sysctls of the machine. Neither the
// name nor the value of a sysctl may permit this (CVE-2022-0811).
func TestSysctls(t *testing.T) {
	f := newFixture(t, nil)
	const pattern, forced = "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/shm_rmid_forced"
	before, err := os.ReadFile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"kernel.core_pattern": "|/evil", "net/../kernel/core_pattern": "|/evil", "net....kernel.core_pattern": "|/evil",
		"kernel.shm/../core_pattern": "|/evil",
		"kernel.shm_rmid_forced":     "1+kernel.core_pattern=|/evil", "vm.overcommit_memory": "1",
		"net.ipv4.ip_local_port_range": "1024 65000", // the Pod has no separate network
	} {
		conf := podConfig(t.TempDir(), "evil")
		conf.Linux.Sysctls = map[string]string{name: value}
		if id, err := f.RunPodSandbox(f.ctx, conf, ""); err == nil {
			t.Errorf("%s=%q: the pod runs", name, value)
			f.RemovePodSandbox(f.ctx, id)
		}
	}
	if after, err := os.ReadFile(pattern); err != nil || string(after) != string(before) {
		t.Errorf("the machine's core_pattern is %q, %v", after, err)
	}
	conf := podConfig(t.TempDir(), "good")
	conf.Linux.Sysctls = map[string]string{"kernel.shm_rmid_forced": "1"}
	f.conf = conf
	if f.pod, err = f.RunPodSandbox(f.ctx, conf, ""); err != nil {
		t.Fatal(err)
	}
	if log := f.run(sh("cat " + forced)); log != "stdout F 1\n" {
		t.Errorf("the sysctl in the Pod: %s", log)
	}
	if host, err := os.ReadFile(forced); err != nil || string(host) != "0\n" {
		t.Errorf("the sysctl of the machine: %s, %v", host, err)
	}
}

// confinedFolder is an environment variable with a folder. If it is set, the test program is a node in this folder,
// which starts one container with runAsNonRoot.
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
	config.Linux.SecurityContext.RunAsUser, config.Annotations = &v1.Int64Value{Value: nonRootUser},
		map[string]string{NonRootAnnotation: "true"}
	id, err := r.CreateContainer(ctx, pod, config, conf)
	if err == nil {
		err = r.StartContainer(ctx, id)
	}
	return errors.Join(err, r.RemovePodSandbox(ctx, pod))
}

// TestRunAsNonRootWithoutRoot checks that a container with runAsNonRoot does not start on a node without root, which
// has only one user. The error must list the fields to omit.
func TestRunAsNonRootWithoutRoot(t *testing.T) {
	requireRoot(t)
	node := exec.Command("/proc/self/exe")
	node.Env = append(os.Environ(), confinedFolder+"="+t.TempDir())
	one := []syscall.SysProcIDMap{{HostID: 0, Size: 1}}
	node.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: one,
		GidMappings: one}
	out, err := node.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "cannot change to user 65532, group 65532") ||
		!strings.Contains(string(out), "omit runAsUser, runAsNonRoot,") {
		t.Errorf("%v: %s", err, out)
	}
}
