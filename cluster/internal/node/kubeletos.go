package node

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/userns"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/mount-utils"
)

// mounter is upstream's mounter, except that in a user namespace it creates a folder instead of a tmpfs. Only the
// node's user may read the folder. In a user namespace, a tmpfs would end with the node, and Pods that continue would
// no longer see updates.
type mounter struct {
	mount.Interface
	noTmpfs bool
}

func newMounter() mounter { return mounter{mount.New(""), userns.RunningInUserNS()} }

// MountSensitiveWithoutSystemd implements mount.Interface. emptyDir calls it to mount a tmpfs, also for secrets and
// tokens.
func (m mounter) MountSensitiveWithoutSystemd(source, target, kind string, options, secret []string) error {
	if m.noTmpfs && kind == "tmpfs" {
		if err := os.MkdirAll(target, 0o700); err != nil {
			return err
		}
		return os.Chmod(target, 0o700) // it may exist with another mode
	}
	return m.Interface.MountSensitiveWithoutSystemd(source, target, kind, options, secret)
}

// hostUtil is upstream's HostUtils, except that it does not mount the node's folder. The mount would remain after the
// node ends. Only volume drivers need it, and this node has none.
type hostUtil struct{ hostutil.HostUtils }

// MakeRShared does nothing.
func (hostUtil) MakeRShared(string) error { return nil }

// logOS is upstream's OSInterface with two differences. It creates the links of /var/log/containers in the node's
// folder, because several nodes share the host, and users other than root may not write to /var/log. Its Glob finds no
// files for a relative pattern. The kubelet uses such a pattern to clean up a container without a log path, and would
// then remove all files of the working directory.
type logOS struct {
	container.RealOS
	root string
}

// nodePath returns path in a folder of the node if path is in /var/log/containers, or else path itself.
func (l logOS) nodePath(path string) string {
	if rest, ok := strings.CutPrefix(path, kubelet.DefaultContainerLogsDir); ok {
		return filepath.Join(l.root, "containers") + rest
	}
	return path
}

// MkdirAll is os.MkdirAll for nodePath(path).
func (l logOS) MkdirAll(path string, mode os.FileMode) error {
	return l.RealOS.MkdirAll(l.nodePath(path), mode)
}

// Symlink is os.Symlink for nodePath(path). It creates the folder of the link.
func (l logOS) Symlink(to, path string) error {
	if err := l.RealOS.MkdirAll(filepath.Dir(l.nodePath(path)), 0o755); err != nil {
		return err
	}
	return l.RealOS.Symlink(to, l.nodePath(path))
}

// Stat is os.Stat for nodePath(path).
func (l logOS) Stat(path string) (os.FileInfo, error) { return l.RealOS.Stat(l.nodePath(path)) }

// Remove is os.Remove for nodePath(path).
func (l logOS) Remove(path string) error { return l.RealOS.Remove(l.nodePath(path)) }

// Glob is filepath.Glob for nodePath(pattern). It returns no files for a relative pattern.
func (l logOS) Glob(pattern string) ([]string, error) {
	if !filepath.IsAbs(pattern) {
		return nil, nil
	}
	return l.RealOS.Glob(l.nodePath(pattern))
}
