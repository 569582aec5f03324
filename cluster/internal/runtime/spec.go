package runtime

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/trellis-k8s/trellis/cluster/internal/runtime/process"
)

// spec is what a container of a pod comes to: CRI in, what the kernel is asked for out.
func (r *Runtime) spec(id string, s *sandbox, config *v1.ContainerConfig, img image) (process.Spec, error) {
	program, argv, err := img.command(config.GetCommand(), config.GetArgs())
	if err != nil {
		return process.Spec{}, err
	}
	spec := process.Spec{
		Folder: r.containerFolder(id), Sandbox: s.Holder, Join: s.Spaces, New: unix.CLONE_NEWNS,
		Program: program, Args: argv, Env: environment(s, config), Dir: config.GetWorkingDir(),
		Shm: filepath.Join(r.sandboxFolder(s.ID), "shm"), AllDev: config.GetLinux().GetSecurityContext().GetPrivileged(),
		OOMScoreAdj: int(config.GetLinux().GetResources().GetOomScoreAdj()),
		User:        user(config), NoNewPrivs: config.GetLinux().GetSecurityContext().GetNoNewPrivs(),
		TTY: config.GetTty(), Stdin: config.GetStdin(), StdinOnce: config.GetStdinOnce(),
	}
	if s.Spaces&unix.CLONE_NEWIPC == 0 {
		spec.Shm = "/dev/shm"
	}
	if img.folder {
		spec.Images = img.path
	}
	if spec.Dir == "" {
		spec.Dir = "/"
	}
	if config.GetLogPath() != "" {
		spec.Log = filepath.Join(s.Config.GetLogDirectory(), config.GetLogPath())
	}
	if err := r.pids(&spec, config.GetLinux().GetSecurityContext().GetNamespaceOptions()); err != nil {
		return spec, err
	}
	spec.Mounts, err = r.mounts(s, config)
	return spec, err
}

// pids says in which PID namespace a container lives.
func (r *Runtime) pids(spec *process.Spec, options *v1.NamespaceOption) error {
	if options.GetPid() != v1.NamespaceMode_POD {
		spec.Join &^= unix.CLONE_NEWPID
	}
	switch options.GetPid() {
	case v1.NamespaceMode_CONTAINER:
		spec.New |= unix.CLONE_NEWPID
	case v1.NamespaceMode_TARGET:
		target, started, err := r.running(options.GetTargetId())
		if err != nil {
			return fmt.Errorf("the container whose processes are to be seen: %w", err)
		}
		if target.Spec.New&unix.CLONE_NEWPID != 0 || target.Spec.PIDOf != nil {
			spec.PIDOf = &started.Init
		}
	}
	return nil
}

func environment(s *sandbox, config *v1.ContainerConfig) []string {
	host := s.Config.GetHostname()
	if s.Spaces&unix.CLONE_NEWUTS == 0 {
		host, _ = os.Hostname()
	}
	// Programs of this machine find others where they do outside.
	const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	home := "/"
	if u := user(config); u == nil || u.UID == 0 {
		home = cmp.Or(os.Getenv("HOME"), home)
	}
	env := []string{"HOSTNAME=" + host, "PATH=" + cmp.Or(os.Getenv("PATH"), path), "HOME=" + home}
	if config.GetTty() {
		env = append(env, "TERM=xterm")
	}
	for _, e := range config.GetEnvs() {
		env = append(env, e.GetKey()+"="+string(e.GetValue()))
	}
	return (&exec.Cmd{Env: env}).Environ() // each once: programs differ in which of two they take
}

// nonRootUser is the user and group of a container whose Pod has runAsNonRoot and names no user. Programs and folders
// name none, so the kubelet gets it as the user of each image: it passes that on where a Pod has no runAsUser.
const nonRootUser = 65532

// NonRootAnnotation is the annotation by which the kubelet's side reports that a Pod names no user, and whether it has
// runAsNonRoot.
const NonRootAnnotation = "trellis.dev/run-as-non-root"

// user returns the user of a container; nil is the node's. Only a Pod that allows root gets the node's user, so a
// container without the annotation has the user that the kubelet sent.
func user(config *v1.ContainerConfig) *process.User {
	c := config.GetLinux().GetSecurityContext()
	u := &process.User{UID: int(c.GetRunAsUser().GetValue()), GID: int(c.GetRunAsGroup().GetValue())}
	for _, g := range c.GetSupplementalGroups() {
		u.Groups = append(u.Groups, int(g))
	}
	switch config.GetAnnotations()[NonRootAnnotation] {
	case "true":
		if u.UID = cmp.Or(u.UID, nonRootUser); c.GetRunAsGroup() == nil {
			u.GID = u.UID // group 0 may read files of root
		}
	case "false":
		u.UID = 0 // as the node is, if need be in a namespace
	}
	if u.UID == 0 && u.GID == 0 && u.Groups == nil {
		return nil
	}
	return u
}

func (r *Runtime) mounts(s *sandbox, config *v1.ContainerConfig) (list []process.Mount, err error) {
	if dns := filepath.Join(r.sandboxFolder(s.ID), "resolv.conf"); exists(dns) {
		list = append(list, process.Mount{Source: dns, Target: "/etc/resolv.conf"})
	}
	for _, m := range config.GetMounts() {
		if m.GetPropagation() == v1.MountPropagation_PROPAGATION_BIDIRECTIONAL {
			return nil, fmt.Errorf("mounting %s: the process runtime has no bidirectional mounts", m.GetContainerPath())
		}
		source := m.GetHostPath()
		if m.GetImage().GetImage() != "" {
			img, err := r.Images.find(m.GetImage().GetImage())
			if err != nil {
				return nil, err
			}
			source = filepath.Join(img.path, m.GetImageSubPath())
		} else if !exists(source) { // as other runtimes do for a hostPath that nobody has made
			if err := os.MkdirAll(source, 0o755); err != nil {
				return nil, err
			}
		}
		list = append(list, process.Mount{Source: source, Target: m.GetContainerPath(), ReadOnly: m.GetReadonly(), Recursive: m.GetRecursiveReadOnly()})
	}
	return list, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
