// Package descriptors prevents processes from inheriting open files. It uses only the kernel and must not import other
// packages of this module.
package descriptors

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// firstExtra is the first descriptor after the standard streams.
const firstExtra = 3

// CloseAllOnExec marks all descriptors of this process close-on-exec, except the standard streams. It also marks the
// files that libraries have opened without close-on-exec. Then a command inherits only the files that its exec.Cmd
// lists.
func CloseAllOnExec() error {
	err := unix.CloseRange(firstExtra, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) { // Linux before 5.11
		err = each(firstExtra, func(fd int) { unix.CloseOnExec(fd) })
	}
	if err != nil {
		return fmt.Errorf("cannot mark open files close-on-exec: %w", err)
	}
	return nil
}

// CloseInherited closes the descriptors that this process has inherited and whose number is at least first. Inherited
// descriptors are not marked close-on-exec, because exec would have closed them. Descriptors with this mark stay open,
// because this process has opened them.
func CloseInherited(first int) error {
	err := each(first, func(fd int) {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	})
	if err != nil {
		return fmt.Errorf("cannot close inherited files: %w", err)
	}
	return nil
}

// each calls the function do for each open descriptor whose number is at least first.
func each(first int, do func(fd int)) error {
	open, err := os.ReadDir("/proc/self/fd")
	for _, entry := range open {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd >= first {
			do(fd)
		}
	}
	return err
}
