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

// CloseAllOnExec marks all descriptors of this process close-on-exec, except the standard streams. A command then
// inherits only the files that its exec.Cmd lists. This includes files that a library has opened without the mark.
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

// CloseInherited closes the inherited descriptors of this process from first on. An inherited descriptor is not marked
// close-on-exec, because exec would have closed it. So descriptors with the mark, which this process has opened, stay
// open.
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

// each calls do with every open descriptor from first on.
func each(first int, do func(fd int)) error {
	open, err := os.ReadDir("/proc/self/fd")
	for _, entry := range open {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd >= first {
			do(fd)
		}
	}
	return err
}
