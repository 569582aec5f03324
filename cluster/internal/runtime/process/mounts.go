package process

import (
	"errors"
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
	covers  map[uint64]bool // their devices
	volumes []string        // what is mounted for writing: in there, a folder is made as anywhere
}

// mount makes the file system of a container, in the mount namespace of this process.
func (s *Spec) mount() error {
	v := &view{covers: map[uint64]bool{}}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("making the mount namespace private: %w", err)
	}
	sort.SliceStable(s.Mounts, func(i, j int) bool { return depth(s.Mounts[i].Target) < depth(s.Mounts[j].Target) })
	trees := make([]int, len(s.Mounts))
	for i, m := range s.Mounts { // all of them first, for one may hide where another comes from
		var err error
		if trees[i], err = clone(unix.AT_FDCWD, m.Source); err != nil {
			return fmt.Errorf("mounting %s at %s: %w", m.Source, m.Target, err)
		}
	}
	if s.spaces()&unix.CLONE_NEWPID != 0 {
		if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mounting /proc: %w", err)
		}
	}
	if !s.AllDev {
		if err := v.devices(s.Shm); err != nil {
			return fmt.Errorf("making /dev: %w", err)
		}
	}
	for i, m := range s.Mounts {
		if err := v.attach(trees[i], m); err != nil {
			return fmt.Errorf("mounting %s at %s: %w", m.Source, m.Target, err)
		}
	}
	dir, err := securejoin.SecureJoin("/", s.Dir)
	if err == nil {
		err = v.place(dir, true)
	}
	if err != nil {
		return fmt.Errorf("the working directory %s: %w", s.Dir, err)
	}
	return nil
}

func depth(path string) int { return strings.Count(filepath.Clean(path), "/") }

// clone makes a second mount of a file or folder, with what is mounted below, which is nowhere yet.
func clone(folder int, path string) (tree int, err error) {
	tree, err = unix.OpenTree(folder, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return tree, nil
}

// mountAt gives a mount its place.
func mountAt(tree, folder int, path string) error {
	return unix.MoveMount(tree, "", folder, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// attach mounts a file or folder of the host at its place.
func (v *view) attach(tree int, m Mount) error {
	defer unix.Close(tree)
	target, err := securejoin.SecureJoin("/", m.Target)
	if err != nil {
		return err
	}
	if target == "/" {
		return fmt.Errorf("the root of a container's file system cannot be replaced")
	}
	var stat unix.Stat_t
	if err := unix.Fstat(tree, &stat); err != nil {
		return err
	}
	if err := v.place(target, stat.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return err
	}
	if m.ReadOnly {
		flags := uint(unix.AT_EMPTY_PATH)
		if m.Recursive {
			flags |= unix.AT_RECURSIVE
		}
		if err := unix.MountSetattr(tree, "", flags, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return err
		}
	} else {
		v.volumes = append(v.volumes, target)
	}
	return mountAt(tree, unix.AT_FDCWD, target)
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
	var of unix.Stat_t
	if err := unix.Stat(folder, &of); err != nil {
		return err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	below, layer, err := v.empty(folder, of.Mode&0o7777)
	if err != nil {
		return err
	}
	defer unix.Close(below)
	defer unix.Close(layer)
	_ = unix.Fchownat(layer, "", int(of.Uid), int(of.Gid), unix.AT_EMPTY_PATH) // the namespace may not have that user: then it stays the node's
	for _, e := range entries {
		if err := mirror(below, e.Name(), layer); err != nil {
			return err
		}
	}
	if folder != "/" {
		return nil
	}
	if err := unix.Fchdir(layer); err != nil { // nothing but this leads to what lies over the root
		return err
	}
	return unix.Chroot(".")
}

// empty mounts a file system of the container's own over a folder, which stays open.
func (v *view) empty(folder string, mode uint32) (below, layer int, err error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, -1, err
	}
	defer unix.Close(fs)
	if err := errors.Join(unix.FsconfigSetString(fs, "mode", fmt.Sprintf("%o", mode)), unix.FsconfigCreate(fs)); err != nil {
		return -1, -1, err
	}
	if layer, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID); err != nil {
		return -1, -1, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(layer, &stat); err != nil {
		return -1, -1, err
	}
	v.covers[stat.Dev] = true
	if below, err = unix.Open(folder, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return -1, -1, err
	}
	return below, layer, mountAt(layer, unix.AT_FDCWD, folder)
}

// mirror makes what a folder holds visible in another one.
func mirror(from int, name string, to int) error {
	var stat unix.Stat_t
	if err := unix.Fstatat(from, name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil // it has gone, or is a mount whose server has
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		link := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(from, name, link)
		if err != nil {
			return err
		}
		return unix.Symlinkat(string(link[:n]), to, name)
	}
	tree, err := clone(from, name)
	if err != nil {
		return err
	}
	return show(tree, stat.Mode, to, name)
}

// show mounts a file or folder in a folder where nothing has its name.
func show(tree int, mode uint32, folder int, name string) (err error) {
	defer unix.Close(tree)
	if mode&unix.S_IFMT == unix.S_IFDIR {
		err = unix.Mkdirat(folder, name, mode&0o7777)
	} else {
		err = unix.Mknodat(folder, name, unix.S_IFREG|0o644, 0)
	}
	if err != nil {
		return err
	}
	return mountAt(tree, folder, name)
}

// devices makes a /dev with what every container has.
func (v *view) devices(shm string) error {
	memory, err := clone(unix.AT_FDCWD, shm) // which may be below the host's /dev
	if err != nil {
		return err
	}
	below, layer, err := v.empty("/dev", 0o755)
	if err != nil {
		return err
	}
	defer unix.Close(below)
	defer unix.Close(layer)
	links := map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
	for name, to := range links {
		if err := unix.Symlinkat(to, layer, name); err != nil {
			return err
		}
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"} {
		if err := mirror(below, name, layer); err != nil {
			return err
		}
	}
	return show(memory, unix.S_IFDIR|0o755, layer, "shm")
}
