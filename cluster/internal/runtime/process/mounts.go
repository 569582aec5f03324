package process

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// view is a container's view of the host's file system while it is made. What a container needs and the host does not
// have, a mount point for example, must not be made on the host: the folder where it is missing is covered by a small
// file system of the container's own, in which everything that the folder holds is mounted again.
type view struct {
	layer   string          // where covers are put together
	covers  map[uint64]bool // their devices
	volumes []string        // what is mounted for writing: in there, a folder is made as anywhere
}

// mount makes the file system of a container, in the mount namespace of this process.
func (s *Spec) mount() error {
	v := &view{layer: filepath.Join(s.Folder, layerFolder), covers: map[uint64]bool{}}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("making the mount namespace private: %w", err)
	}
	if s.spaces()&unix.CLONE_NEWPID != 0 {
		if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mounting /proc: %w", err)
		}
	}
	if !s.AllDev {
		if err := v.devices(s); err != nil {
			return fmt.Errorf("making /dev: %w", err)
		}
	}
	sort.SliceStable(s.Mounts, func(i, j int) bool { return depth(s.Mounts[i].Target) < depth(s.Mounts[j].Target) })
	for _, m := range s.Mounts {
		if err := v.bind(m); err != nil {
			return fmt.Errorf("mounting %s at %s: %w", m.Source, m.Target, err)
		}
	}
	dir, err := securejoin.SecureJoin("/", s.Dir)
	if err == nil {
		err = v.place(dir, true)
	}
	if err == nil {
		err = os.Chdir(dir)
	}
	if err != nil {
		return fmt.Errorf("the working directory %s: %w", s.Dir, err)
	}
	return nil
}

func depth(path string) int { return strings.Count(filepath.Clean(path), "/") }

// bind mounts a file or folder of the host at its place.
func (v *view) bind(m Mount) error {
	info, err := os.Stat(m.Source)
	if err != nil {
		return err
	}
	target, err := securejoin.SecureJoin("/", m.Target)
	if err != nil {
		return err
	}
	if target == "/" {
		return fmt.Errorf("the root of a container's file system cannot be replaced")
	}
	if err := v.place(target, info.IsDir()); err != nil {
		return err
	}
	if err := unix.Mount(m.Source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if !m.ReadOnly {
		v.volumes = append(v.volumes, target)
		return nil
	}
	flags := uint(0)
	if m.Recursive {
		flags = unix.AT_RECURSIVE
	}
	return unix.MountSetattr(unix.AT_FDCWD, target, flags, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

// place makes a file or folder where something is to be mounted, unless it is there. The path has no symbolic links.
func (v *view) place(path string, folder bool) error {
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	parent := filepath.Dir(path)
	for {
		if _, err := os.Lstat(parent); err == nil {
			break
		}
		parent = filepath.Dir(parent)
	}
	if !v.own(parent) {
		if err := v.cover(parent); err != nil {
			return fmt.Errorf("covering %s: %w", parent, err)
		}
	}
	if folder {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return touch(path)
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// own says whether something may be made in a folder: it is a cover, or a volume of the pod's.
func (v *view) own(folder string) bool {
	var stat unix.Stat_t
	if err := unix.Stat(folder, &stat); err == nil && v.covers[stat.Dev] {
		return true
	}
	for _, volume := range v.volumes {
		if folder == volume || strings.HasPrefix(folder, volume+"/") {
			return true
		}
	}
	return false
}

// cover puts a file system of the container's own over a folder, with everything that the folder holds.
func (v *view) cover(folder string) error {
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	if err := v.empty(info.Mode().Perm()); err != nil {
		return err
	}
	for _, e := range entries {
		if err := mirror(filepath.Join(folder, e.Name()), filepath.Join(v.layer, e.Name())); err != nil {
			return err
		}
	}
	return v.move(folder)
}

// empty mounts a file system of the container's own at the layer.
func (v *view) empty(mode os.FileMode) error {
	if err := os.MkdirAll(v.layer, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", v.layer, "tmpfs", unix.MS_NOSUID, fmt.Sprintf("mode=%o", mode)); err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Stat(v.layer, &stat); err != nil {
		return err
	}
	v.covers[stat.Dev] = true
	return nil
}

// move puts the layer in its place.
func (v *view) move(folder string) error {
	if folder != "/" {
		return unix.Mount(v.layer, folder, "", unix.MS_MOVE, "")
	}
	if err := os.Chdir(v.layer); err != nil {
		return err
	}
	// The old root comes to lie on the new one, and is taken off it.
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return os.Chdir("/")
}

// mirror makes something visible at a second place.
func mirror(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return nil // it has gone, or is a mount whose server has
	}
	switch {
	case info.Mode()&os.ModeSymlink != 0:
		link, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(link, to)
	case info.IsDir():
		if err := os.Mkdir(to, info.Mode().Perm()); err != nil {
			return err
		}
	default:
		if err := touch(to); err != nil {
			return err
		}
	}
	return unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "")
}

// devices makes a /dev with what every container has, and what this one asks for.
func (v *view) devices(s *Spec) error {
	if err := v.empty(0o755); err != nil {
		return err
	}
	list := []Device{{"/dev/pts", "/dev/pts"}}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx"} {
		list = append(list, Device{"/dev/" + name, "/dev/" + name})
	}
	if s.Shm != "" {
		list = append(list, Device{s.Shm, "/dev/shm"})
	}
	links := map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(v.layer, name)); err != nil {
			return err
		}
	}
	for _, d := range list {
		if err := mirror(d.Source, filepath.Join(v.layer, filepath.Base(d.Target))); err != nil {
			return err
		}
	}
	if err := v.move("/dev"); err != nil {
		return err
	}
	for _, d := range s.Devices {
		if err := v.bind(Mount{Source: d.Source, Target: d.Target}); err != nil {
			return fmt.Errorf("%s: %w", d.Source, err)
		}
	}
	return nil
}
