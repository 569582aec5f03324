package node

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/userns"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/container"
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
		return os.MkdirAll(target, 0o700)
	}
	return m.Interface.MountSensitiveWithoutSystemd(source, target, kind, options, secret)
}

// logLinks is the operating system, but that the links to all logs, /var/log/containers, are in the node's folder: not everybody
// may write there, and another node may be on this host.
type logLinks struct {
	container.RealOS
	root string
}

func (l logLinks) at(path string) string {
	if rest, ok := strings.CutPrefix(path, kubelet.ContainerLogsDir); ok {
		return filepath.Join(l.root, "containers") + rest
	}
	return path
}

// MkdirAll is os.MkdirAll.
func (l logLinks) MkdirAll(path string, mode os.FileMode) error {
	return l.RealOS.MkdirAll(l.at(path), mode)
}

// Symlink is os.Symlink, in a folder that is made for it.
func (l logLinks) Symlink(to, path string) error {
	if err := l.RealOS.MkdirAll(filepath.Dir(l.at(path)), 0o755); err != nil {
		return err
	}
	return l.RealOS.Symlink(to, l.at(path))
}

// Stat is os.Stat.
func (l logLinks) Stat(path string) (os.FileInfo, error) { return l.RealOS.Stat(l.at(path)) }

// Remove is os.Remove.
func (l logLinks) Remove(path string) error { return l.RealOS.Remove(l.at(path)) }

// Glob is filepath.Glob.
func (l logLinks) Glob(pattern string) ([]string, error) { return l.RealOS.Glob(l.at(pattern)) }
