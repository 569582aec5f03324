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

// own opens the image's file that a word of the pod's means, before mounts may hide it; nil where there is none.
func (s *Spec) own(word string) (*program, error) {
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
	return &program{file, interpreted(path)}, nil
}

// program is a file of an image.
type program struct {
	*os.File
	interpreted bool // by a program that opens the file by its path
}

// interpreted reports whether a file is a script or the like: the kernel runs an ELF file without an interpreter.
func interpreted(path string) bool {
	f, err := os.Open(path)
	if err != nil { // an interpreter cannot read it either
		return false
	}
	defer f.Close()
	magic := make([]byte, 4)
	_, err = io.ReadFull(f, magic)
	return err != nil || string(magic) != "\x7fELF"
}

// launch calls run with each path of a program in turn until one succeeds. It returns the first error. The program gets
// the standard streams and no other descriptor, except that a script run by its descriptor keeps that one.
func (s *Spec) launch(word string, own *program, run func(path string) error) error {
	paths, err := s.paths(word, own)
	if err != nil {
		return err
	}
	if err := descriptors.Keep(); err != nil {
		return err
	}
	for i, path := range paths {
		if own != nil && i == len(paths)-1 && own.interpreted {
			unix.FcntlInt(own.Fd(), unix.F_SETFD, 0)
		}
		failed := run(path)
		if failed == nil {
			return nil
		}
		if err == nil {
			err = failed
		}
	}
	return err
}

// paths returns the paths of a program in the container, in the order to try. The image's own file is where it is on the
// host, unless another file is there now. Its descriptor leads to it always: through mounts above it, and through
// folders that the container's user may not enter.
func (s *Spec) paths(word string, own *program) (list []string, err error) {
	if own == nil {
		path, err := s.lookUp(word)
		return []string{path}, err
	}
	here, err := own.Stat()
	if err != nil {
		return nil, err
	}
	if there, err := os.Stat(own.Name()); err == nil && os.SameFile(here, there) {
		list = append(list, own.Name())
	}
	return append(list, fmt.Sprintf("/proc/self/fd/%d", own.Fd())), nil
}

// lookUp finds a program in the container.
func (s *Spec) lookUp(word string) (string, error) {
	for _, pair := range s.Env {
		if list, ok := strings.CutPrefix(pair, "PATH="); ok {
			os.Setenv("PATH", list)
		}
	}
	path, err := exec.LookPath(word)
	if errors.Is(err, exec.ErrDot) { // below the working directory
		err = nil
	}
	return path, err
}

// User is who a container runs as; nil is who the node does.
type User struct {
	UID, GID int
	Groups   []int
}

// settleUser makes this process the container's user's, and enters the working directory with that user's rights: root
// would pass through folders that are closed to the user.
func (s *Spec) settleUser() error {
	if err := s.User.assume(); err != nil {
		return err
	}
	if s.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("cannot forbid new privileges: %w", err)
		}
	}
	dir, err := securejoin.SecureJoin("/", s.Dir) // a link of /proc is a path here, never what it leads to
	if err == nil {
		err = os.Chdir(dir)
	}
	if err != nil {
		return fmt.Errorf("cannot enter the working directory %s as the container's user: %w", s.Dir, err)
	}
	return nil
}

// assume makes this process the user's.
func (u *User) assume() error {
	if u == nil {
		return nil
	}
	for fd := range 3 { // a program that opens /dev/stdout needs a pipe or terminal of its own
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
		return fmt.Errorf("becoming user %d, group %d and %v: %w: a node without root has one user, its own: leave out runAsUser, runAsNonRoot, runAsGroup, fsGroup and supplementalGroups, or run the node as root", u.UID, u.GID, u.Groups, err)
	}
	return nil
}
