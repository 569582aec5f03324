// Package descriptors keeps open files of one process out of the processes that it starts. It uses the kernel alone.
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

// Keep marks all descriptors of this process but the standard streams close-on-exec. A command that it starts then has
// only those that its exec.Cmd lists, also where a library opened a file without the mark.
func Keep() error {
	err := unix.CloseRange(firstExtra, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) { // Linux before 5.11
		err = each(firstExtra, func(fd int) { unix.CloseOnExec(fd) })
	}
	if err != nil {
		return fmt.Errorf("cannot mark open files close-on-exec: %w", err)
	}
	return nil
}

// Drop closes the descriptors from first on that this process inherited. It leaves those that the process opened
// itself, which are marked close-on-exec: an inherited descriptor has lost that mark, or exec had closed it.
func Drop(first int) error {
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
