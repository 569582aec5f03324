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

// mountBuilder sets up the mounts of a container. The container sees the host's file system, but a missing mount point
// must not be created on the host. Instead, mountBuilder covers the parent folder with a tmpfs of the container and
// mounts every entry of the folder there.
type mountBuilder struct {
	covers  map[uint64]bool // device numbers of the tmpfs mounts
	volumes []string        // writable mounts, where mount points are created directly
}

// mount sets up the file system of the container in the mount namespace of this process.
func (s *Spec) mount() error {
	b := &mountBuilder{covers: map[uint64]bool{}}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("making the mount namespace private: %w", err)
	}
	sort.SliceStable(s.Mounts, func(i, j int) bool { return depth(s.Mounts[i].Target) < depth(s.Mounts[j].Target) })
	trees := make([]int, len(s.Mounts))
	for i, m := range s.Mounts { // clone all sources before the first mount, because a mount may hide a source
		var err error
		if trees[i], err = cloneTree(unix.AT_FDCWD, m.Source); err != nil {
			return fmt.Errorf("mounting %s at %s: %w", m.Source, m.Target, err)
		}
	}
	if s.separateNamespaces()&unix.CLONE_NEWPID != 0 {
		if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mounting /proc: %w", err)
		}
	}
	if !s.AllDev {
		if err := b.devices(s.Shm); err != nil {
			return fmt.Errorf("making /dev: %w", err)
		}
	}
	for i, m := range s.Mounts {
		if err := b.mountSource(trees[i], m); err != nil {
			return fmt.Errorf("mounting %s at %s: %w", m.Source, m.Target, err)
		}
	}
	dir, err := securejoin.SecureJoin("/", s.Dir)
	if err == nil {
		err = b.createMountPoint(dir, true)
	}
	if err != nil {
		return fmt.Errorf("cannot create the working directory %s: %w", s.Dir, err)
	}
	return nil
}

func depth(path string) int { return strings.Count(filepath.Clean(path), "/") }

// cloneTree returns a detached copy of the mount at path, with all mounts below it.
func cloneTree(folder int, path string) (tree int, err error) {
	tree, err = unix.OpenTree(folder, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return tree, nil
}

// moveMount attaches a detached mount at path, relative to folder.
func moveMount(tree, folder int, path string) error {
	return unix.MoveMount(tree, "", folder, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// mountSource attaches tree, the clone of the source of m, at the target of m.
func (b *mountBuilder) mountSource(tree int, m Mount) error {
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
	if err := b.createMountPoint(target, stat.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
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
		b.volumes = append(b.volumes, target)
	}
	return moveMount(tree, unix.AT_FDCWD, target)
}

// createMountPoint creates the file or folder at path unless it exists. The path must not contain symbolic links.
func (b *mountBuilder) createMountPoint(path string, folder bool) error {
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
	if !b.writable(parent) {
		if err := b.coverFolder(parent); err != nil {
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

// writable reports whether mount points may be created in folder. They may be created on a tmpfs of coverFolder and in
// a writable volume.
func (b *mountBuilder) writable(folder string) bool {
	var stat unix.Stat_t
	if err := unix.Stat(folder, &stat); err == nil && b.covers[stat.Dev] {
		return true
	}
	for _, volume := range b.volumes {
		if folder == volume || strings.HasPrefix(folder, volume+"/") {
			return true
		}
	}
	return false
}

// coverFolder mounts a tmpfs over folder, and mounts every entry of the covered folder in this tmpfs.
func (b *mountBuilder) coverFolder(folder string) error {
	var stat unix.Stat_t
	if err := unix.Stat(folder, &stat); err != nil {
		return err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	covered, cover, err := b.mountEmpty(folder, stat.Mode&0o7777)
	if err != nil {
		return err
	}
	defer unix.Close(covered)
	defer unix.Close(cover)
	// This fails if the user namespace has no such user. Then the node's user owns the folder.
	_ = unix.Fchownat(cover, "", int(stat.Uid), int(stat.Gid), unix.AT_EMPTY_PATH)
	for _, e := range entries {
		if err := bindEntry(covered, e.Name(), cover); err != nil {
			return err
		}
	}
	if folder != "/" {
		return nil
	}
	if err := unix.Fchdir(cover); err != nil { // the path / still leads to the covered root
		return err
	}
	return unix.Chroot(".")
}

// mountEmpty mounts an empty tmpfs over folder. It returns descriptors of the covered folder and of the tmpfs, which
// the caller must close.
func (b *mountBuilder) mountEmpty(folder string, mode uint32) (covered, cover int, err error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, -1, err
	}
	defer unix.Close(fs)
	if err := errors.Join(unix.FsconfigSetString(fs, "mode", fmt.Sprintf("%o", mode)),
		unix.FsconfigCreate(fs)); err != nil {
		return -1, -1, err
	}
	if cover, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID); err != nil {
		return -1, -1, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(cover, &stat); err != nil {
		return -1, -1, err
	}
	b.covers[stat.Dev] = true
	if covered, err = unix.Open(folder, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return -1, -1, err
	}
	return covered, cover, moveMount(cover, unix.AT_FDCWD, folder)
}

// bindEntry makes an entry of one folder visible in another folder.
func bindEntry(from int, name string, to int) error {
	var stat unix.Stat_t
	if err := unix.Fstatat(from, name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil // it has been deleted, or its file server does not respond
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		link := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(from, name, link)
		if err != nil {
			return err
		}
		return unix.Symlinkat(string(link[:n]), to, name)
	}
	tree, err := cloneTree(from, name)
	if err != nil {
		return err
	}
	return mountNew(tree, stat.Mode, to, name)
}

// mountNew creates the mount point name in folder and attaches tree there. It fails if the name exists.
func mountNew(tree int, mode uint32, folder int, name string) (err error) {
	defer unix.Close(tree)
	if mode&unix.S_IFMT == unix.S_IFDIR {
		err = unix.Mkdirat(folder, name, mode&0o7777)
	} else {
		err = unix.Mknodat(folder, name, unix.S_IFREG|0o644, 0)
	}
	if err != nil {
		return err
	}
	return moveMount(tree, folder, name)
}

// devices mounts a /dev with the devices that every container has.
func (b *mountBuilder) devices(shm string) error {
	shmTree, err := cloneTree(unix.AT_FDCWD, shm) // clone it first: it may be below the host's /dev
	if err != nil {
		return err
	}
	hostDev, dev, err := b.mountEmpty("/dev", 0o755)
	if err != nil {
		return err
	}
	defer unix.Close(hostDev)
	defer unix.Close(dev)
	links := map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
		"stderr": "/proc/self/fd/2"}
	for name, to := range links {
		if err := unix.Symlinkat(to, dev, name); err != nil {
			return err
		}
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"} {
		if err := bindEntry(hostDev, name, dev); err != nil {
			return err
		}
	}
	return mountNew(shmTree, unix.S_IFDIR|0o755, dev, "shm")
}
