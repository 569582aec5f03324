package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"

	"github.com/trellis-k8s/trellis/cluster/internal/descriptors"
)

// openImageFile opens the file of the image that a command of the Pod runs. This is necessary before mounts can hide
// the file. openImageFile returns nil if the image has no such file.
func (s *Spec) openImageFile(word string) (*imageFile, error) {
	path := s.Program
	if path == "" || path == Pause || len(s.Args) > 0 && word != s.Args[0] {
		if s.Images == "" {
			return nil, nil
		}
		var err error
		if path, err = securejoin.SecureJoin(s.Images, word); err != nil {
			return nil, err
		}
		if _, err := exec.LookPath(path); err != nil {
			return nil, nil
		}
	}
	file, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	return &imageFile{file, interpreted(path)}, nil
}

// imageFile is an open executable of an image.
type imageFile struct {
	*os.File
	interpreted bool // the file has an interpreter, which opens it by its path
}

// interpreted reports whether the kernel runs a file through an interpreter, as it does for scripts. ELF files have no
// interpreter in this sense.
func interpreted(path string) bool {
	f, err := os.Open(path)
	if err != nil { // the interpreter cannot read it either
		return false
	}
	defer f.Close()
	magic := make([]byte, 4)
	_, err = io.ReadFull(f, magic)
	return err != nil || string(magic) != "\x7fELF"
}

// launch calls the function run with each path of a program until run succeeds. If run fails for all paths, launch
// returns the first error. The program inherits only the standard streams. If a script runs through its descriptor, it
// also inherits this descriptor.
func (s *Spec) launch(word string, image *imageFile, run func(path string) error) error {
	paths, err := s.paths(word, image)
	if err != nil {
		return err
	}
	if err := descriptors.CloseAllOnExec(); err != nil {
		return err
	}
	for i, path := range paths {
		if image != nil && i == len(paths)-1 && image.interpreted {
			unix.FcntlInt(image.Fd(), unix.F_SETFD, 0)
		}
		runErr := run(path)
		if runErr == nil {
			return nil
		}
		if err == nil {
			err = runErr
		}
	}
	return err
}

// paths returns the paths at which a program may be found in the container, in the order to try. The first path of an
// image's file is its path on the host, unless a mount hides the file. The second path goes through the descriptor of
// the file and always works. It works even if the container's user may not enter the folder of the file.
func (s *Spec) paths(word string, image *imageFile) (list []string, err error) {
	if image == nil {
		path, err := s.lookUp(word)
		return []string{path}, err
	}
	opened, err := image.Stat()
	if err != nil {
		return nil, err
	}
	if atPath, err := os.Stat(image.Name()); err == nil && os.SameFile(opened, atPath) {
		list = append(list, image.Name())
	}
	return append(list, fmt.Sprintf("/proc/self/fd/%d", image.Fd())), nil
}

// lookUp returns the path of a command in the container, with the PATH of the container.
func (s *Spec) lookUp(word string) (string, error) {
	for _, pair := range s.Env {
		if list, ok := strings.CutPrefix(pair, "PATH="); ok {
			os.Setenv("PATH", list)
		}
	}
	path, err := exec.LookPath(word)
	if errors.Is(err, exec.ErrDot) { // found through a relative PATH entry
		err = nil
	}
	return path, err
}

// User is the user of a container. A nil *User means the user of the node.
type User struct {
	UID, GID int
	Groups   []int
}

// switchUser changes the user of this process to the container's user, and then enters the working directory. The
// order is important: as root, the process could enter folders that are forbidden for the user.
func (s *Spec) switchUser() error {
	if err := s.User.apply(); err != nil {
		return err
	}
	if s.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("cannot forbid new privileges: %w", err)
		}
	}
	// SecureJoin resolves links in /proc as text, so it never follows a link to a descriptor.
	dir, err := securejoin.SecureJoin("/", s.Dir)
	if err == nil {
		err = os.Chdir(dir)
	}
	if err != nil {
		return fmt.Errorf("cannot enter the working directory %s as the container's user: %w", s.Dir, err)
	}
	return nil
}

// apply changes the user and the groups of this process.
func (u *User) apply() error {
	if u == nil {
		return nil
	}
	for fd := range 3 { // a program that opens /dev/stdout must own the pipe or terminal
		var stat unix.Stat_t
		if unix.Fstat(fd, &stat) == nil && stat.Rdev != unix.Mkdev(1, 3) { // /dev/null
			unix.Fchown(fd, u.UID, -1)
		}
	}
	err := syscall.Setgroups(u.Groups)
	if err == nil {
		err = syscall.Setresgid(u.GID, u.GID, u.GID)
	}
	if err == nil {
		err = syscall.Setresuid(u.UID, u.UID, u.UID)
	}
	if err != nil {
		return fmt.Errorf("cannot change to user %d, group %d and groups %v: %w: a node without root has only one "+
			"user: "+
			"omit runAsUser, runAsNonRoot, runAsGroup, fsGroup and supplementalGroups, or run the node as root",
			u.UID, u.GID, u.Groups, err)
	}
	return nil
}
