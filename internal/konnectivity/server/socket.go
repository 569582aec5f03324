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
	socketUmask   = 0o177       // umask that allows access only for the server's user
	socketTimeout = time.Second // time for a server at an existing socket to answer
)

// listenSocket listens on a Unix socket. If replace is true, it removes a stale socket. It never removes a socket
// at which a server answers, or a file that is not a socket. Errors contain the flags to change.
func listenSocket(path string, replace bool) (l net.Listener, err error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("--uds-name: %s has %d bytes: choose a path with at most %d bytes",
			path, len(path), maxSocketPath)
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("--uds-name: cannot use the directory of %s: %w (create or mount it)", path, err)
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

// removeStaleSocket removes a socket at which no server listens. If replace is false, it returns an error instead.
func removeStaleSocket(path string, replace bool) error {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("--uds-name: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("--uds-name: %s exists and is not a socket: choose another path, or remove it", path)
	}
	c, err := net.DialTimeout("unix", path, socketTimeout)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("--uds-name: another server answers at %s: stop it, or choose another path", path)
	}
	switch {
	case !errors.Is(err, syscall.ECONNREFUSED): // a server may be too busy to answer
		return fmt.Errorf("--uds-name: cannot determine whether a server listens at %s: %w", path, err)
	case !replace:
		return fmt.Errorf("--uds-name: %s is a stale socket: remove it, or set --delete-existing-uds-file=true", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("--delete-existing-uds-file: %w", err)
	}
	return nil
}

// withUmask calls f with a umask. The umask applies to the whole process, so withUmask may only be used at the
// start, when nothing else creates files.
func withUmask(mask int, f func()) {
	defer syscall.Umask(syscall.Umask(mask))
	f()
}
