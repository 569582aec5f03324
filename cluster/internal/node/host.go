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

// mounter is upstream's, with one difference: in a user namespace of the node's own, what would be memory are plain folders, for the
// owner alone. Mounts there end with the node, while the Pods that have them go on: they would see no change any more.
type mounter struct {
	mount.Interface
	volatile bool
}

func newMounter() mounter { return mounter{mount.New(""), userns.RunningInUserNS()} }

// MountSensitiveWithoutSystemd is how emptyDir asks for memory, and all that is kept in one: secrets, tokens.
func (m mounter) MountSensitiveWithoutSystemd(source, target, kind string, options, secret []string) error {
	if m.volatile && kind == "tmpfs" {
		if err := os.MkdirAll(target, 0o700); err != nil {
			return err
		}
		return os.Chmod(target, 0o700) // it may be there already, for everybody
	}
	return m.Interface.MountSensitiveWithoutSystemd(source, target, kind, options, secret)
}

// hostUtil is upstream's, but that the node's folder is not made a mount of its own, which would be left behind: there are no
// drivers that mount into what a container already has.
type hostUtil struct{ hostutil.HostUtils }

// MakeRShared does nothing.
func (hostUtil) MakeRShared(string) error { return nil }

// logs is the operating system, with two differences. The links to all logs, /var/log/containers, are in the node's folder: not
// everybody may write there, and another node may be on this host. And of a container whose runtime does not say where its log is,
// none is found: the kubelet would take all files of the working directory for it, and remove them.
type logs struct {
	container.RealOS
	root string
}

func (l logs) at(path string) string {
	if rest, ok := strings.CutPrefix(path, kubelet.DefaultContainerLogsDir); ok {
		return filepath.Join(l.root, "containers") + rest
	}
	return path
}

// MkdirAll is os.MkdirAll.
func (l logs) MkdirAll(path string, mode os.FileMode) error {
	return l.RealOS.MkdirAll(l.at(path), mode)
}

// Symlink is os.Symlink, in a folder that is made for it.
func (l logs) Symlink(to, path string) error {
	if err := l.RealOS.MkdirAll(filepath.Dir(l.at(path)), 0o755); err != nil {
		return err
	}
	return l.RealOS.Symlink(to, l.at(path))
}

// Stat is os.Stat.
func (l logs) Stat(path string) (os.FileInfo, error) { return l.RealOS.Stat(l.at(path)) }

// Remove is os.Remove.
func (l logs) Remove(path string) error { return l.RealOS.Remove(l.at(path)) }

// Glob is filepath.Glob.
func (l logs) Glob(pattern string) ([]string, error) {
	if !filepath.IsAbs(pattern) {
		return nil, nil
	}
	return l.RealOS.Glob(l.at(pattern))
}
