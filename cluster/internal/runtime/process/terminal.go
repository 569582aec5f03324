package process

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenTerminal opens a new pseudoterminal.
func OpenTerminal() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a terminal: %w", err)
	}
	// SyscallConn keeps the file in non-blocking mode. With Fd, each read would block a thread.
	conn, err := master.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var number int
	control := func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}
	if failed := conn.Control(control); failed != nil {
		err = failed
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("making a terminal: %w", err)
	}
	return master, slave, nil
}

// Resize sets the size of a terminal.
func Resize(master *os.File, width, height uint16) error {
	conn, err := master.SyscallConn()
	if err != nil {
		return err
	}
	size := unix.Winsize{Row: height, Col: width}
	var ioctlErr error
	err = conn.Control(func(fd uintptr) { ioctlErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &size) })
	if err != nil {
		return err
	}
	return ioctlErr
}
