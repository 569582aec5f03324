package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	maxSocketPath = 107         // bytes, of sockaddr_un on Linux
	socketUmask   = 0o177       // umask: for the user of the server alone
	socketTimeout = time.Second // for a socket that was there before to answer
)

// listenSocket opens a Unix socket. One that is left over is removed if replace says so; one that answers, and what is no socket,
// never is. Errors name the flags that say all this.
func listenSocket(path string, replace bool) (l net.Listener, err error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("--uds-name: %s has %d characters, more than the %d that a socket can have: choose a shorter one", path, len(path), maxSocketPath)
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("--uds-name: the folder of %s cannot be used: %w (make it, or mount it)", path, err)
	}
	if err := removeStaleSocket(path, replace); err != nil {
		return nil, err
	}
	withUmask(socketUmask, func() { l, err = net.Listen("unix", path) })
	if err != nil {
		return nil, fmt.Errorf("--uds-name: %w", err)
	}
	return l, nil
}

// removeStaleSocket removes a socket that nobody listens on any longer.
func removeStaleSocket(path string, replace bool) error {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("--uds-name: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("--uds-name: %s exists and is no socket: choose another name, or remove it", path)
	}
	c, err := net.DialTimeout("unix", path, socketTimeout)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("--uds-name: another server answers at %s: end it, or choose another name", path)
	}
	switch {
	case !errors.Is(err, syscall.ECONNREFUSED): // it may be too busy to answer
		return fmt.Errorf("--uds-name: %s exists, and it is not known whether a server listens there: %w", path, err)
	case !replace:
		return fmt.Errorf("--uds-name: %s is left over from another server: remove it, or let --delete-existing-uds-file be true", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("--delete-existing-uds-file: %w", err)
	}
	return nil
}

// withUmask calls f while new files lack the given permissions. That is so for the whole process: it is for the start, when nothing
// else makes files.
func withUmask(mask int, f func()) {
	defer syscall.Umask(syscall.Umask(mask))
	f()
}
