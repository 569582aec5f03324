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

// spec converts the CRI configuration of a container to a process.Spec.
func (r *Runtime) spec(id string, s *sandbox, config *v1.ContainerConfig, img image) (process.Spec, error) {
	program, argv, err := img.command(config.GetCommand(), config.GetArgs())
	if err != nil {
		return process.Spec{}, err
	}
	spec := process.Spec{
		Folder: r.containerFolder(id), Sandbox: s.PauseProcess, Join: s.Namespaces, New: unix.CLONE_NEWNS,
		Program: program, Args: argv, Env: environment(s, config), Dir: config.GetWorkingDir(),
		Shm: filepath.Join(r.sandboxFolder(s.ID),
			"shm"), AllDev: config.GetLinux().GetSecurityContext().GetPrivileged(),
		OOMScoreAdj: int(config.GetLinux().GetResources().GetOomScoreAdj()),
		User:        containerUser(config), NoNewPrivs: config.GetLinux().GetSecurityContext().GetNoNewPrivs(),
		TTY: config.GetTty(), Stdin: config.GetStdin(), StdinOnce: config.GetStdinOnce(),
	}
	if s.Namespaces&unix.CLONE_NEWIPC == 0 {
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
	if err := r.setPIDNamespace(&spec, config.GetLinux().GetSecurityContext().GetNamespaceOptions()); err != nil {
		return spec, err
	}
	spec.Mounts, err = r.mounts(s, config)
	return spec, err
}

// setPIDNamespace sets the PID namespace of a container.
func (r *Runtime) setPIDNamespace(spec *process.Spec, options *v1.NamespaceOption) error {
	if options.GetPid() != v1.NamespaceMode_POD {
		spec.Join &^= unix.CLONE_NEWPID
	}
	switch options.GetPid() {
	case v1.NamespaceMode_CONTAINER:
		spec.New |= unix.CLONE_NEWPID
	case v1.NamespaceMode_TARGET:
		target, started, err := r.runningContainer(options.GetTargetId())
		if err != nil {
			return fmt.Errorf("cannot share the processes of the target container: %w", err)
		}
		if target.Spec.New&unix.CLONE_NEWPID != 0 || target.Spec.PIDOf != nil {
			spec.PIDOf = &started.Init
		}
	}
	return nil
}

// environment returns the environment of a container.
func environment(s *sandbox, config *v1.ContainerConfig) []string {
	host := s.Config.GetHostname()
	if s.Namespaces&unix.CLONE_NEWUTS == 0 {
		host, _ = os.Hostname()
	}
	// The programs of images are programs of this machine, so they need the PATH of the machine.
	const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	home := "/"
	if u := containerUser(config); u == nil || u.UID == 0 {
		home = cmp.Or(os.Getenv("HOME"), home)
	}
	env := []string{"HOSTNAME=" + host, "PATH=" + cmp.Or(os.Getenv("PATH"), path), "HOME=" + home}
	if config.GetTty() {
		env = append(env, "TERM=xterm")
	}
	for _, e := range config.GetEnvs() {
		env = append(env, e.GetKey()+"="+string(e.GetValue()))
	}
	return (&exec.Cmd{Env: env}).Environ() // removes duplicates: programs differ in which duplicate they use
}

// nonRootUser is the ID of the user and group for containers with runAsNonRoot and without runAsUser. Images of this
// runtime specify no user, so the runtime returns nonRootUser as the user of each image. The kubelet then sends this
// user for a Pod without runAsUser.
const nonRootUser = 65532

// NonRootAnnotation is the annotation of a container without runAsUser. Its value is true if runAsNonRoot is true,
// otherwise false. Package node sets it.
const NonRootAnnotation = "trellis.dev/run-as-non-root"

// containerUser returns the user of a container. nil means the user of the node. Only a container that may run as root
// gets this user. The annotation is "false" for such a container. A container without the annotation gets the user
// that the kubelet sent.
func containerUser(config *v1.ContainerConfig) *process.User {
	c := config.GetLinux().GetSecurityContext()
	u := &process.User{UID: int(c.GetRunAsUser().GetValue()), GID: int(c.GetRunAsGroup().GetValue())}
	for _, g := range c.GetSupplementalGroups() {
		u.Groups = append(u.Groups, int(g))
	}
	switch config.GetAnnotations()[NonRootAnnotation] {
	case "true":
		if u.UID = cmp.Or(u.UID, nonRootUser); c.GetRunAsGroup() == nil {
			u.GID = u.UID // not 0, because group 0 may read files of root
		}
	case "false":
		u.UID = 0 // the user of the node, which may be root of a user namespace
	}
	if u.UID == 0 && u.GID == 0 && u.Groups == nil {
		return nil
	}
	return u
}

// mounts returns the mounts of a container. It creates missing source folders.
func (r *Runtime) mounts(s *sandbox, config *v1.ContainerConfig) (list []process.Mount, err error) {
	if dns := filepath.Join(r.sandboxFolder(s.ID), "resolv.conf"); exists(dns) {
		list = append(list, process.Mount{Source: dns, Target: "/etc/resolv.conf"})
	}
	for _, m := range config.GetMounts() {
		if m.GetPropagation() == v1.MountPropagation_PROPAGATION_BIDIRECTIONAL {
			return nil, fmt.Errorf("mounting %s: the process runtime does not support bidirectional mount propagation",
				m.GetContainerPath())
		}
		source := m.GetHostPath()
		if m.GetImage().GetImage() != "" {
			img, err := r.Images.resolve(m.GetImage().GetImage())
			if err != nil {
				return nil, err
			}
			source = filepath.Join(img.path, m.GetImageSubPath())
		} else if !exists(source) { // other runtimes also create a missing hostPath
			if err := os.MkdirAll(source, 0o755); err != nil {
				return nil, err
			}
		}
		list = append(list, process.Mount{Source: source, Target: m.GetContainerPath(), ReadOnly: m.GetReadonly(),
			Recursive: m.GetRecursiveReadOnly()})
	}
	return list, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
