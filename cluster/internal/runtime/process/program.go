package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// own opens the image's file that a word of the pod's means, before mounts may hide it; nil where there is none.
func (s *Spec) own(word string) (*os.File, error) {
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
	return os.OpenFile(path, unix.O_PATH, 0)
}

// paths are those by which a program is found in the container, to be tried in turn. The image's own file is where it is
// on the host, unless something else is there now. By its descriptor it is found always: whatever is mounted above, and
// whichever folder keeps it from the container's user.
func (s *Spec) paths(word string, own *os.File, descriptor uintptr) (list []string, err error) {
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
	return append(list, fmt.Sprintf("/proc/self/fd/%d", descriptor)), nil
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
		return fmt.Errorf("becoming user %d, group %d and %v: %w: a node without root has one user, its own: leave out runAsUser, runAsGroup, fsGroup and supplementalGroups, or run it as root", u.UID, u.GID, u.Groups, err)
	}
	return nil
}
